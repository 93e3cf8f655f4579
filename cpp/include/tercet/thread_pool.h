// One persistent pool for the kernels: static shares, taken over piece by piece from a thread that is late; workers
// that spin briefly and then sleep.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tercet {

struct Range {
  int64_t begin;
  int64_t end;
};

// The share `part` of `parts` of 0..count, contiguous and equal up to one.
inline Range share(int64_t count, int64_t part, int64_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

// Calls job(context, piece, scratch) for pieces of at most `grain` units that together are 0..count, on the pool's
// threads with the caller among them, and returns when all have returned. Each thread has an equal share and helps the
// others when it is done, so that a thread whose CPU another process has delays nobody but the piece it is at. Which
// thread runs what is not defined; results must not depend on it. Where `shared` is false, for work too small to share,
// the caller runs {0, count} alone.
//
// `scratch` is the thread's own memory of `scratch_bytes`, aligned to 64 and with any content: jobs must not throw, and
// so must not allocate. Throws std::bad_alloc, before any job runs, if there is none to be had.
//
// Jobs must not run jobs of their own. Callers on several threads take turns. `count` is below 2^31.
void run_on_pool(bool shared, int64_t count, int64_t grain, std::size_t scratch_bytes,
                 void (*job)(void* context, Range piece, void* scratch), void* context);

// As run_on_pool, for job(piece) that needs no scratch.
template <typename Job>
void parallel(bool shared, int64_t count, int64_t grain, Job&& job) {
  if (!shared) {
    job(Range{0, count});
    return;
  }
  run_on_pool(
      true, count, grain, 0, [](void* context, Range piece, void*) { (*static_cast<Job*>(context))(piece); }, &job);
}

// As run_on_pool, for job(piece, scratch) with `scratch_floats` floats.
template <typename Job>
void parallel_with_scratch(bool shared, int64_t count, int64_t grain, int64_t scratch_floats, Job&& job) {
  run_on_pool(
      shared, count, grain, static_cast<std::size_t>(scratch_floats) * sizeof(float),
      [](void* context, Range piece, void* scratch) {
        (*static_cast<Job*>(context))(piece, static_cast<float*>(scratch));
      },
      &job);
}

// Elements below which an element-wise kernel is done sooner by one thread than shared.
constexpr int64_t kMinElementsToShare = 16 * 1024;

// The grain for rows of which each has `num_elements`: pieces large beside the cost of taking one.
inline int64_t row_grain(int64_t num_elements) {
  return std::max<int64_t>(1, 8 * 1024 / std::max<int64_t>(1, num_elements));
}

// The pool's size, its caller included. At first: as many as the process may use CPUs.
int num_threads();

// Replaces the pool's threads. Throws std::invalid_argument below 1 or above 1024, std::system_error if the system has
// no more; the pool is then as before.
void set_num_threads(int count);

}  // namespace tercet
