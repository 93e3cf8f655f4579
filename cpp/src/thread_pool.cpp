#include "tercet/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tercet {
namespace {

// About 50 to 100 us: longer than the gap between two kernels of one step, shorter than the gap between plans.
constexpr int kSpinsBeforeSleep = 4000;
// After so many spins the caller assumes that a worker has lost its CPU, and offers its own.
constexpr int kSpinsBeforeYield = 20000;

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
  return std::max(1u, std::thread::hardware_concurrency());
}

class ThreadPool {
 public:
  explicit ThreadPool(int size) : size_(size) {
    for (int thread = 1; thread < size; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  }

  ~ThreadPool() {
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      stopping_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  void run(void (*job)(void*, int, int), void* context) {
    if (size_ > 1) {
      job_ = job;
      context_ = context;
      num_pending_.store(size_ - 1, std::memory_order_relaxed);
      // Both this increment and a worker's count of sleepers are sequentially consistent: either the worker sees the
      // new generation before it sleeps, or this thread sees the sleeper and wakes it.
      generation_.fetch_add(1);
      if (num_sleeping_.load() > 0) {
        {
          std::lock_guard<std::mutex> lock(sleep_mutex_);
        }
        wake_.notify_all();
      }
    }
    job(context, 0, size_);
    for (int spins = 0; num_pending_.load(std::memory_order_acquire) > 0; ++spins) {
      if (spins < kSpinsBeforeYield) {
        spin_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  void work(int thread) {
    uint64_t seen = 0;
    while (true) {
      seen = next_generation(seen);
      if (stopping_) return;
      job_(context_, thread, size_);
      num_pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  uint64_t next_generation(uint64_t seen) {
    for (int spins = 0; spins < kSpinsBeforeSleep; ++spins) {
      const uint64_t now = generation_.load(std::memory_order_acquire);
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
  std::vector<std::thread> workers_;
  // Each on a cache line of its own: the workers poll the one while they finish into the other.
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> num_pending_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  void (*job_)(void*, int, int) = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
};

struct SharedPool {
  std::mutex mutex;
  ThreadPool* pool = new ThreadPool(num_cpus_allowed());
};

// Never destroyed: at process exit the workers may still be asleep inside it.
SharedPool& shared_pool() {
  static SharedPool* shared = new SharedPool;
  return *shared;
}

}  // namespace

void run_on_pool(void (*job)(void*, int, int), void* context) {
  SharedPool& shared = shared_pool();
  std::lock_guard<std::mutex> lock(shared.mutex);
  shared.pool->run(job, context);
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
  if (count == shared.pool->size()) return;
  ThreadPool* pool = new ThreadPool(count);
  delete shared.pool;
  shared.pool = pool;
}

}  // namespace tercet
