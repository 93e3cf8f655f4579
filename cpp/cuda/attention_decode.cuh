// What a block of decode attention works on, and how its warps load it.
#pragma once

#include "attention_operands.cuh"
#include "attention_plan.cuh"

namespace tercet::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// A warp's tiles under way, K and V: with the blocks of a multiprocessor some 190 KiB.
template <typename S, int D>
struct Ring {
  static constexpr int kTileBytes = KvTile<S, D>::kBytes;
  static constexpr int kStages = kTileBytes > 2048 ? 2 : 3;
  static constexpr int kBytes = kStages * 2 * kTileBytes;
};

struct DecodeArguments {
  AttentionRows rows;
  AttentionTensors tensors;
  Plan plan;
  float* states;   // [num_units, H, D]
  float2* maxima;  // [num_units, H], the maximum (times log2 e) and the sum
  int num_heads, num_kv_heads, group, parts, parts_of_group;
  int block_shift;  // log2 S
  int last_block;   // N - 1
  float scale_log2;
  bool starts_early;
  int window;
  float cap_log2;
};

// Tokens of a unit's chunk before those that it sees.
__device__ inline int unseen_of(const DecodeArguments& args, const Unit& unit) {
  return max(0, reach_of(args.window, unit.context).first_token - unit.chunk * kChunk);
}

// A part of a unit. Items follow each other: all parts of a unit, then those of the next.
struct Item {
  int unit_index;
  int part;
  Unit unit;
  int kv_head;
  int head;  // the first
  int num_heads;
  int num_tokens;  // of the chunk

  __device__ Item(const DecodeArguments& args, const Share& share)
      : unit_index(share.unit_index), part(share.part), unit(share.unit) {
    open(args);
  }

  __device__ void step(const DecodeArguments& args) {
    if (++part == args.parts) {
      part = 0;
      ++unit_index;
    }
    const int4 words = __ldg(reinterpret_cast<const int4*>(args.plan.units + unit_index));
    unit = {words.x, words.y, words.z, words.w};
    open(args);
  }

 private:
  __device__ void open(const DecodeArguments& args) {
    num_tokens = min(kChunk, unit.context - unit.chunk * kChunk);
    kv_head = args.parts_of_group == 1 ? part : part / args.parts_of_group;
    const int first = (part - kv_head * args.parts_of_group) * kPartHeads;
    head = kv_head * args.group + first;
    num_heads = min(kPartHeads, args.group - first);
  }
};

// A warp's first tile in an item. Without a limit, which is a window or a cap, a kernel knows nothing of windows.
template <typename S, int D, bool kLimited>
__device__ int first_tile(const DecodeArguments& args, const Item& item) {
  const int warp = threadIdx.x / kWarp;
  if constexpr (kLimited) return warp + unseen_of(args, item.unit) / KvTile<S, D>::kTokens;
  return warp;
}

// A warp's loads: the next tile of its own in the block's items.
template <typename S, int D, bool kLimited>
class Loader {
 public:
  __device__ Loader(const DecodeArguments& args, const Item& first, int count, uint32_t ring)
      : args_(args), item_(first), count_(count), ring_(ring) {
    const int lane = threadIdx.x % kWarp;
    lane_offset_ = Rows::offset(lane / kPieces, lane % kPieces);
    open();
    find_tile();
  }

  // Whether the next tile holds what this very step puts into the cache: the token's own key and value.
  __device__ bool at_end() const {
    return count_ > 0 && chunk_start_ + (tile_ + 1) * kTileTokens >= item_.unit.context;
  }

  // Starts the next tile's copies, if there is one, and ends the group in any case.
  __device__ void load() {
    if (count_ > 0) {
      const int num_rows = item_.num_tokens - tile_ * kTileTokens;
      const uint32_t to = ring_ + stage_ * (2 * kTileBytes);
      if (num_rows >= kTileTokens && kTileTokens <= 1 << args_.block_shift) {
        load_full(to);
      } else {
        load_part(to, num_rows);
      }
      stage_ = stage_ + 1 == Ring<S, D>::kStages ? 0 : stage_ + 1;
      tile_ += kWarps;
      find_tile();
    }
    commit_copies();
  }

 private:
  using Rows = typename KvTile<S, D>::Rows;
  static constexpr int kTileTokens = KvTile<S, D>::kTokens;
  static constexpr int kTileBytes = KvTile<S, D>::kBytes;
  static constexpr int kPieces = Rows::kPieces;
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(S));  // elements of it
  static constexpr int kCopies = kTileTokens * kPieces / kWarp;
  static constexpr int kIds = kChunk / kMinSlots / kWarp;

  // A tile within a block of the cache, where its rows follow each other.
  __device__ void load_full(uint32_t to) const {
    const int lane = threadIdx.x % kWarp;
    const uint64_t policy = read_once_policy();
    const int64_t from = offset_of(chunk_start_ + tile_ * kTileTokens) + lane * kPiece;
    const S* k = static_cast<const S*>(args_.tensors.k_cache) + from;
    const S* v = static_cast<const S*>(args_.tensors.v_cache) + from;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      uint32_t place;
      if constexpr (kWarp % kPieces == 0) {
        place = Rows::advance(to + lane_offset_, i * kWarp / kPieces, 0);
      } else {
        place = to + Rows::offset((i * kWarp + lane) / kPieces, (i * kWarp + lane) % kPieces);
      }
      copy_async(place, k + i * kWarp * kPiece, policy);
      copy_async(place + kTileBytes, v + i * kWarp * kPiece, policy);
    }
  }

  // Any tile. Past its end there may be anything, and 0 times NaN is NaN: zeros take its place.
  __device__ void load_part(uint32_t to, int num_rows) const {
    const int lane = threadIdx.x % kWarp;
    const auto* k = static_cast<const S*>(args_.tensors.k_cache);
    const auto* v = static_cast<const S*>(args_.tensors.v_cache);
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * kWarp + lane, row = at / kPieces, piece = at % kPieces;
      const int64_t from = offset_of(chunk_start_ + tile_ * kTileTokens + row) + piece * kPiece;
      const uint32_t place = to + Rows::offset(row, piece);
      copy_async(place, k + from, row < num_rows);
      copy_async(place + kTileBytes, v + from, row < num_rows);
    }
  }

  // On to the next item, unless this one has a tile for the warp.
  __device__ void find_tile() {
    while (count_ > 0 && tile_ * kTileTokens >= item_.num_tokens) {
      if (--count_ == 0) break;
      item_.step(args_);
      open();
    }
  }

  __device__ void open() {
    tile_ = first_tile<S, D, kLimited>(args_, item_);
    if (count_ <= 0) return;
    chunk_start_ = item_.unit.chunk * kChunk;
    first_block_ = chunk_start_ >> args_.block_shift;
    const int* table = args_.rows.block_tables + static_cast<int64_t>(item_.unit.sequence) * args_.rows.table_width;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      const int block = first_block_ + i * kWarp + static_cast<int>(threadIdx.x % kWarp);
      blocks_[i] = 0;
      if (block << args_.block_shift < chunk_start_ + item_.num_tokens) {
        blocks_[i] = min(static_cast<unsigned>(__ldg(table + block)), static_cast<unsigned>(args_.last_block));
      }
    }
  }

  // Elements from the cache's start to the row of `position`. All lanes call it.
  __device__ int64_t offset_of(int position) const {
    const int at = (position >> args_.block_shift) - first_block_;
    int64_t block = __shfl_sync(0xffffffffu, blocks_[0], at % kWarp);
#pragma unroll
    for (int i = 1; i < kIds; ++i) {
      const int other = __shfl_sync(0xffffffffu, blocks_[i], at % kWarp);
      if (at >= i * kWarp) block = other;
    }
    const int slot = position & ((1 << args_.block_shift) - 1);
    return (((block * args_.num_kv_heads + item_.kv_head) << args_.block_shift) + slot) * D;
  }

  const DecodeArguments& args_;
  Item item_;
  int count_;  // items that are left, item_ among them
  uint32_t ring_;
  uint32_t lane_offset_;
  int stage_ = 0;
  int tile_ = 0, chunk_start_ = 0, first_block_ = 0;
  int blocks_[kIds];  // of the chunk's blocks, each 32nd from `lane` on
};

// Writes the results of the tokens whose contexts are of several chunks, from the states that decode left.
void merge_chunks(const AttentionShape& shape, const DecodeArguments& args, const AttentionSizes& sizes, Stream stream);

}  // namespace tercet::cuda
