// Stages of tiles of K and V in shared memory, and the warpgroup that fills them from the pages.
//
// A cache of the type that is multiplied is copied behind the threads' backs. Of one of e4m3 bytes are copied to a
// place of their own, some tiles ahead, and from there they go to the stages as float16, each thread's what it copied
// itself.
#pragma once

#include "attention_prefill.cuh"
#include "e4m3.cuh"
#include "warpgroup.cuh"

namespace tercet::cuda {

constexpr int kGroupThreads = 128;
constexpr int kGroups = 2;  // that multiply
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kRows = kGroups * 64;
constexpr int kKeys = 128;
constexpr int kKeyTiles = kKeys / 8;
constexpr int kStages = 2;

// What is multiplied: T is the type of q and the result, S that of the cache.
template <typename T, typename S>
using FactorOf = std::conditional_t<std::is_same_v<S, E4m3>, __half, T>;

template <typename S, int D>
struct Layout {
  static constexpr int kByteTiles = std::is_same_v<S, E4m3> ? 3 : 0;
  static constexpr int kQueryBytes = kRows * D * 2;
  static constexpr int kTileBytes = kKeys * D * 2;
  static constexpr int kKeysAt = kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kBytesAt = kValuesAt + kStages * kTileBytes;
  static constexpr int kBarriersAt = kBytesAt + kByteTiles * kKeys * D;
  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kBarriersAt + 4 * kStages * 8 + kAlignment;
};

// Barriers of the stages of K or V: one says that a stage is full, one that it is free again.
struct Stages {
  uint32_t tiles;
  uint32_t barriers;
  int tile_bytes;
  int served;  // steps of the block's tiles before this one

  __device__ uint32_t tile(int step) const { return tiles + (served + step) % kStages * tile_bytes; }
  __device__ uint32_t full(int step) const { return barriers + (served + step) % kStages * 8; }
  __device__ uint32_t free(int step) const { return full(step) + kStages * 8; }

  __device__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(full(i), kGroupThreads);
      init_barrier(free(i), kGroups * kGroupThreads / kWarp);
    }
  }
  __device__ void wait_full(int step) const {
    wait_barrier(full(step), (served + step) / kStages & 1);
    show_to_products();
  }
  __device__ void wait_free(int step) const {
    if (served + step >= kStages) wait_barrier(free(step), ((served + step) / kStages + 1) & 1);
  }
  __device__ void give_back(int step) const {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(free(step));
  }
};

// Tiles of the context before the first that a row of the tile sees, and those from there on.
template <bool kLimited>
__device__ int first_step_of(const PrefillArguments& args, const PrefillTile<kLimited>& tile) {
  return tile.first_seen(args, tile.first_row) / kKeys;
}

template <bool kLimited>
__device__ int num_steps_of(const PrefillArguments& args, const PrefillTile<kLimited>& tile) {
  return (tile.end + kKeys - 1) / kKeys - first_step_of(args, tile);
}

constexpr int kRun = 64;  // tokens that one look into the block table finds, where blocks are so large

// Elements from a cache's start to the row of `position`.
template <int D, bool kLimited>
__device__ int64_t offset_of(const PrefillArguments& args, const PrefillTile<kLimited>& tile, int position) {
  const int64_t block = min(static_cast<unsigned>(__ldg(tile.table + (position >> args.block_shift))),
                            static_cast<unsigned>(args.last_block));
  const int slot = position & ((1 << args.block_shift) - 1);
  return (((block * args.num_kv_heads + tile.kv_head) << args.block_shift) + slot) * D;
}

// Copies a thread's pieces of 16 bytes of tokens [start, start + kKeys) of one cache's KV head: `piece` of every
// kRowsApart-th row from `row` on, to places kStride apart; zeros from the end on.
template <typename S, int D, int kRowsApart, int kStride, bool kLimited>
__device__ void gather(const S* cache, const PrefillArguments& args, const PrefillTile<kLimited>& tile, int start,
                       int row, int piece, uint32_t to) {
  constexpr int kCopies = kRun / kRowsApart, kElements = 16 / static_cast<int>(sizeof(S));
#pragma unroll
  for (int run = 0; run < kKeys; run += kRun, to += kCopies * kStride) {
    if (kRun <= 1 << args.block_shift && start + run + kRun <= tile.end) {
      // Rows of a block follow each other.
      const S* from = cache + offset_of<D>(args, tile, start + run) + row * D + piece * kElements;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) copy_async(to + i * kStride, from + i * kRowsApart * D);
      continue;
    }
#pragma unroll 2
    for (int i = 0; i < kCopies; ++i) {
      const int position = start + run + i * kRowsApart + row;
      const bool present = position < tile.end;
      const S* from = cache + (present ? offset_of<D>(args, tile, position) : 0) + piece * kElements;
      copy_async(to + i * kStride, from, present);
    }
  }
}

// The copying warpgroup's work: all tiles of the context in the order in which they are used, which is the keys of a
// tile before the values of the one before.
template <typename T, int D, bool kLimited>
__device__ void gather_all(const PrefillArguments& args, const PrefillTile<kLimited>& tile, const Stages& keys,
                           const Stages& values) {
  constexpr int kPieces = D / 8, kRowsApart = kGroupThreads / kPieces;
  static_assert(kRowsApart % 8 == 0, "a thread's rows have their pieces in the same places");
  const int thread = threadIdx.x % kGroupThreads, row = thread / kPieces, piece = thread % kPieces;
  const int first_step = first_step_of(args, tile);
  const auto bring = [&](const void* cache, const Stages& stages, int step) {
    stages.wait_free(step);
    gather<T, D, kRowsApart, kRowsApart * kPanelRowBytes>(static_cast<const T*>(cache), args, tile,
                                                          (first_step + step) * kKeys, row, piece,
                                                          stages.tile(step) + panel_offset<kKeys>(row, piece));
    arrive_with_copies(stages.full(step));
  };
  const int num_steps = num_steps_of(args, tile);
  for (int step = 0; step <= num_steps; ++step) {
    if (step < num_steps) bring(args.tensors.k_cache, keys, step);
    if (step > 0) bring(args.tensors.v_cache, values, step - 1);
  }
}

// The same for a cache of e4m3, by way of `bytes`.
template <int D, bool kLimited>
__device__ void widen_all(const PrefillArguments& args, const PrefillTile<kLimited>& tile, uint32_t bytes,
                          const Stages& keys, const Stages& values) {
  constexpr int kPieces = D / 16, kRowsApart = kGroupThreads / kPieces, kCopies = kKeys / kRowsApart;
  constexpr int kTiles = Layout<E4m3, D>::kByteTiles;
  const int thread = threadIdx.x % kGroupThreads;
  // Eight threads have two rows, so that what they write meets different banks.
  const int row = thread / 4 % 2 + thread / (2 * kPieces) * 2, piece = thread % 4 + thread / 8 % (D / 64) * 4;
  const int first_step = first_step_of(args, tile), num_tiles = 2 * num_steps_of(args, tile);
  const auto is_keys = [&](int index) { return index == 0 || (index % 2 == 1 && index + 1 < num_tiles); };
  const auto step_of = [&](int index) { return is_keys(index) ? (index + 1) / 2 : (index - 1) / 2; };
  const auto place_of = [&](int index) { return bytes + index % kTiles * (kKeys * D) + thread * 16; };
  const auto copy = [&](int index) {
    if (index < num_tiles) {
      const void* cache = is_keys(index) ? args.tensors.k_cache : args.tensors.v_cache;
      gather<E4m3, D, kRowsApart, kGroupThreads * 16>(static_cast<const E4m3*>(cache), args, tile,
                                                      (first_step + step_of(index)) * kKeys, row, piece,
                                                      place_of(index));
    }
    commit_copies();
  };
  for (int index = 0; index < kTiles - 1; ++index) copy(index);
  for (int index = 0; index < num_tiles; ++index) {
    copy(index + kTiles - 1);
    wait_copies<kTiles - 1>();
    const bool is_key = is_keys(index);
    const Stages stages{is_key ? keys.tiles : values.tiles, is_key ? keys.barriers : values.barriers, keys.tile_bytes,
                        keys.served};
    const int step = step_of(index);
    stages.wait_free(step);
    const uint32_t from = place_of(index), to = stages.tile(step) + panel_offset<kKeys>(row, piece * 2);
#pragma unroll 2
    for (int i = 0; i < kCopies; ++i) {
      uint32_t fours[4];
      load_shared(fours, from + i * kGroupThreads * 16);
      uint32_t pairs[4][2];
#pragma unroll
      for (int j = 0; j < 4; ++j) widen(fours[j], pairs[j]);
      const uint32_t place = to + i * kRowsApart * kPanelRowBytes;
      store_shared(place, {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]});
      store_shared(place ^ 16, {pairs[2][0], pairs[2][1], pairs[3][0], pairs[3][1]});
    }
    show_to_products();
    arrive(stages.full(step));
  }
}

}  // namespace tercet::cuda
