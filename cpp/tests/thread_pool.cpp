// The thread pool under the thread sanitizer: python cpp/build.py --sanitize.
//
// Jobs write plain memory, so that two threads at one unit, or a unit that is not finished when its job has returned,
// are data races, which the sanitizer reports; and units that are left out or done twice are found by their counts.
#include "tercet/thread_pool.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tercet {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

// Each unit of many jobs, long, short and empty, is done once, with scratch that no other thread touches meanwhile.
void run_jobs(std::uint64_t seed, int num_jobs) {
  std::mt19937_64 random(seed);
  std::vector<int> times_done;
  for (int job = 0; job < num_jobs; ++job) {
    const auto count = static_cast<int64_t>(random() % 200);
    const auto grain = static_cast<int64_t>(1 + random() % 9);
    const auto num_floats = static_cast<int64_t>(1 + random() % 300);
    const auto work = static_cast<int>(random() % 40);
    times_done.assign(static_cast<std::size_t>(count), 0);
    parallel_with_scratch(random() % 8 != 0, count, grain, num_floats, [&](Range piece, float* scratch) {
      for (int64_t unit = piece.begin; unit < piece.end; ++unit) {
        const auto mark = static_cast<float>(unit);
        for (int i = 0; i < work; ++i) scratch[i % num_floats] = mark;
        if (work > 0 && scratch[0] != mark) std::abort();
        ++times_done[static_cast<std::size_t>(unit)];
      }
    });
    for (const int times : times_done) expect(times == 1, "a unit was done " + std::to_string(times) + " times");
    // Now and then long enough for the workers to fall asleep.
    if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
  }
}

void callers_take_turns(int num_callers) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < num_callers; ++caller) {
    callers.emplace_back([caller] { run_jobs(static_cast<std::uint64_t>(1000 + caller), 300); });
  }
  for (std::thread& caller : callers) caller.join();
}

// Scratch that cannot be had is the caller's error, before any job; the next job is none the worse.
void scratch_is_refused_before_any_job() {
  constexpr int64_t kTooMuch = int64_t{1} << 58;
  for (const bool shared : {true, false}) {
    int num_runs = 0;
    bool refused = false;
    try {
      parallel_with_scratch(shared, 100, 1, kTooMuch, [&](Range, float*) { ++num_runs; });
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    expect(refused && num_runs == 0, "2^60 bytes of scratch were not refused");
    run_jobs(7, 50);
  }
}

}  // namespace
}  // namespace tercet

int main() {
  try {
    for (const int size : {1, 2, 3, 8, 2}) {
      tercet::set_num_threads(size);
      tercet::run_jobs(static_cast<std::uint64_t>(size), 1500);
    }
    tercet::callers_take_turns(4);
    tercet::scratch_is_refused_before_any_job();
    tercet::set_num_threads(1);  // the workers end
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thread pool: %s\n", error.what());
    return 1;
  }
  std::printf("thread pool: no fault\n");
  return 0;
}
