#include "tercet/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tercet {
namespace {

// About 50 to 100 us: longer than the gap between two kernels of one step, shorter than the gap between plans.
constexpr int kSpinsBeforeSleep = 4000;
// After so many spins the caller assumes that a worker in its last piece has lost its CPU, and offers its own.
constexpr int kSpinsBeforeYield = 1000;

inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

int num_cpus_allowed() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

using Job = void (*)(void* context, Range piece, void* scratch);

// Memory that a thread uses for one job after another. Its content is worthless between them.
class Scratch {
 public:
  // Throws std::bad_alloc.
  void reserve(std::size_t bytes) {
    if (bytes <= size_) return;
    const std::size_t whole_lines = (bytes + 63) / 64 * 64;
    data_.reset();
    size_ = 0;
    data_.reset(whole_lines < bytes ? nullptr : std::aligned_alloc(64, whole_lines));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = whole_lines;
  }

  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
};

class ThreadPool {
 public:
  explicit ThreadPool(int size) : size_(size), cursors_(new Cursor[size]), scratches_(new Scratch[size]) {
    try {
      for (int thread = 1; thread < size; ++thread) workers_.emplace_back([this, thread] { work(thread); });
    } catch (...) {
      stop();  // the system has no more threads; those begun must not outlive this
      throw;
    }
  }

  ~ThreadPool() { stop(); }

  int size() const { return size_; }

  void run(int64_t count, int64_t grain, std::size_t scratch_bytes, Job job, void* context) {
    // No job runs now, so nobody uses what is replaced here.
    for (int t = 0; t < size_; ++t) scratches_[t].reserve(scratch_bytes);
    // Whoever reads this count rather than the last job's finds that job's cursors closed.
    count_.store(count, std::memory_order_release);
    grain_.store(grain, std::memory_order_relaxed);
    job_.store(job, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_left_.store(count, std::memory_order_relaxed);
    const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    for (int t = 0; t < size_; ++t) {
      const auto begin = static_cast<uint32_t>(share(count, t, size_).begin);
      cursors_[t].at.store(pack(generation, begin), std::memory_order_release);
    }
    announce();
    take_pieces(0, generation);
    for (int spins = 0; num_left_.load(std::memory_order_acquire) > 0; ++spins) {
      if (spins < kSpinsBeforeYield) {
        spin_pause();
      } else {
        std::this_thread::yield();
      }
    }
    // A worker that wakes only now must find nothing to take, whatever it reads of the next job as that is written.
    for (int t = 0; t < size_; ++t) cursors_[t].at.store(pack(generation, kClosed), std::memory_order_release);
  }

 private:
  // Which job, and the first unit of a thread's share that nobody has taken, in one word: a unit can only be taken
  // from the job that the taker means. Each on a cache line of its own, as its owner uses it most.
  struct alignas(64) Cursor {
    std::atomic<uint64_t> at{0};
  };
  static constexpr uint32_t kClosed = 0xffffffffu;

  static uint64_t pack(uint32_t generation, uint32_t unit) { return uint64_t{generation} << 32 | unit; }

  void stop() {
    stopping_ = true;
    announce();
    for (auto& worker : workers_) worker.join();
  }

  // Both this increment and a worker's count of sleepers are sequentially consistent: either the worker sees the new
  // generation before it sleeps, or this thread sees the sleeper and wakes it.
  void announce() {
    generation_.fetch_add(1);
    if (num_sleeping_.load() == 0) return;
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
    }
    wake_.notify_all();
  }

  void work(int thread) {
    uint32_t seen = 0;
    while (true) {
      seen = next_generation(seen);
      if (stopping_) return;
      take_pieces(thread, seen);
    }
  }

  // Runs pieces of the thread's own share, then of the others', until none are left.
  void take_pieces(int thread, uint32_t generation) {
    for (int i = 0; i < size_; ++i) {
      const int owner = (thread + i) % size_;
      std::atomic<uint64_t>& cursor = cursors_[owner].at;
      uint64_t at = cursor.load(std::memory_order_acquire);
      while (at >> 32 == generation && static_cast<uint32_t>(at) != kClosed) {
        // If these are already the next job's, the cursor has been closed since, and the exchange fails.
        const int64_t grain = grain_.load(std::memory_order_relaxed);
        const int64_t end = share(count_.load(std::memory_order_acquire), owner, size_).end;
        const auto job = job_.load(std::memory_order_relaxed);
        void* context = context_.load(std::memory_order_relaxed);
        const int64_t begin = static_cast<uint32_t>(at);
        if (begin >= end) break;
        const int64_t next = std::min(begin + grain, end);
        if (!cursor.compare_exchange_weak(at, pack(generation, static_cast<uint32_t>(next)), std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
          continue;
        }
        job(context, {begin, next}, scratches_[thread].data());
        num_left_.fetch_sub(next - begin, std::memory_order_release);
        at = cursor.load(std::memory_order_acquire);
      }
    }
  }

  uint32_t next_generation(uint32_t seen) {
    for (int spins = 0; spins < kSpinsBeforeSleep; ++spins) {
      const uint32_t now = generation_.load(std::memory_order_acquire);
      if (now != seen) return now;
      spin_pause();
    }
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    num_sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load() != seen; });
    num_sleeping_.fetch_sub(1);
    return generation_.load();
  }

  const int size_;
  std::unique_ptr<Cursor[]> cursors_;
  std::unique_ptr<Scratch[]> scratches_;  // of each thread
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int64_t> num_left_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> grain_{1};
  std::atomic<Job> job_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;  // last: they use all of the above
};

struct SharedPool {
  std::mutex mutex;
  std::unique_ptr<ThreadPool> pool = std::make_unique<ThreadPool>(num_cpus_allowed());
};

// Never destroyed: at process exit the workers may still be asleep inside it.
SharedPool& shared_pool() {
  static SharedPool* shared = new SharedPool;
  return *shared;
}

}  // namespace

void run_on_pool(bool shared, int64_t count, int64_t grain, std::size_t scratch_bytes, Job job, void* context) {
  if (count <= 0) return;
  if (shared && count > grain) {
    SharedPool& all = shared_pool();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (all.pool->size() > 1) return all.pool->run(count, grain, scratch_bytes, job, context);
  }
  static thread_local Scratch scratch;
  scratch.reserve(scratch_bytes);
  job(context, {0, count}, scratch.data());
}

int num_threads() {
  SharedPool& shared = shared_pool();
  std::lock_guard<std::mutex> lock(shared.mutex);
  return shared.pool->size();
}

void set_num_threads(int count) {
  if (count < 1 || count > 1024) {
    throw std::invalid_argument("num_threads must be 1 to 1024, is " + std::to_string(count));
  }
  SharedPool& shared = shared_pool();
  std::lock_guard<std::mutex> lock(shared.mutex);
  if (count != shared.pool->size()) shared.pool = std::make_unique<ThreadPool>(count);
}

}  // namespace tercet
