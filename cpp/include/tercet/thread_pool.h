// One persistent pool for the kernels: static shares, workers that spin briefly and then sleep.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tercet {

// Calls job(context, thread, num_threads) once on each of the pool's threads, the caller being thread 0, and returns
// when all have returned. Jobs must not throw, nor run jobs of their own. Callers on several threads take turns.
void run_on_pool(void (*job)(void* context, int thread, int num_threads), void* context);

// As run_on_pool, but runs on the caller alone, as (0, 1), where `parallel` is false: for work too small to share.
template <typename Job>
void parallel(bool parallel, Job&& job) {
  if (!parallel) {
    job(0, 1);
    return;
  }
  run_on_pool([](void* context, int thread, int num_threads) { (*static_cast<Job*>(context))(thread, num_threads); },
              &job);
}

// Elements below which an element-wise kernel is done sooner by one thread than shared.
constexpr int64_t kMinElementsToShare = 16 * 1024;

// The pool's size, its caller included. At first: as many as the process may use CPUs.
int num_threads();

// Replaces the pool's threads. Throws std::invalid_argument below 1 or above 1024.
void set_num_threads(int count);

struct Range {
  int64_t begin;
  int64_t end;
};

// The share `part` of `parts` of 0..count, contiguous and equal up to one.
inline Range share(int64_t count, int64_t part, int64_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

}  // namespace tercet
