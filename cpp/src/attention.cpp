#include "tercet/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tercet/kernels.h"

namespace tercet {
namespace {

// Staging a key costs about as much as this many rows' products with it.
constexpr int64_t kStagingRows = 12;
// Row-times-key products below which a call is done sooner by one thread.
constexpr int64_t kMinCostToShare = 2048;
// Few, as each cut through a tile costs a merge; more than one, as a late thread's are taken by others.
constexpr int64_t kPiecesPerThread = 4;

// A tile with its segments, which are numbered through all tiles: `first_unit` is the tile's first.
struct Work {
  AttentionTile tile;
  int64_t first_key;  // where its first segment begins
  int64_t end;        // past its last key
  int64_t first_unit;
  int64_t num_units;
  int64_t cut_at;  // where the states of its segments are kept, if it is cut; else -1
};

void fail(const std::string& problem) { throw std::invalid_argument(problem); }

void check_sequence(const AttentionCall& call, int64_t b) {
  const int64_t query_len = int64_t{call.query_starts[b + 1]} - call.query_starts[b];
  const int64_t context_len = call.context_lens[b];
  const std::string name = "sequence " + std::to_string(b);
  if (query_len < 0) fail(name + ": query_starts decrease");
  if (query_len == 0) return;
  if (context_len < query_len) {
    fail(name + ": context " + std::to_string(context_len) + " is shorter than its " + std::to_string(query_len) +
         " query tokens");
  }
  const int64_t num_table = (context_len + call.block_size - 1) / call.block_size;
  if (num_table > call.table_width) {
    fail(name + ": context " + std::to_string(context_len) + " needs " + std::to_string(num_table) +
         " blocks, its table has " + std::to_string(call.table_width));
  }
  const int32_t* table = call.block_tables + b * call.table_width;
  for (int64_t i = 0; i < num_table; ++i) {
    if (table[i] < 0 || table[i] >= call.num_blocks) {
      fail(name + ": block " + std::to_string(table[i]) + " of " + std::to_string(call.num_blocks) + " in its table");
    }
  }
}

void check(const AttentionCall& call) {
  if (call.query_starts[0] != 0 || call.query_starts[call.num_sequences] != call.num_tokens) {
    fail("query_starts must run from 0 to the number of tokens, " + std::to_string(call.num_tokens));
  }
  for (int64_t b = 0; b < call.num_sequences; ++b) check_sequence(call, b);
}

std::vector<Work> plan_work(const AttentionCall& call) {
  const int64_t ratio = call.num_heads / call.num_kv_heads;
  const int64_t tile_tokens = std::max<int64_t>(1, kMaxTileRows / ratio);
  std::vector<Work> works;
  int64_t num_units = 0;
  for (int64_t b = 0; b < call.num_sequences; ++b) {
    const int64_t begin = call.query_starts[b];
    const int64_t end = call.query_starts[b + 1];
    const int64_t first_position = call.context_lens[b] - (end - begin);
    for (int64_t g = 0; g < call.num_kv_heads; ++g) {
      for (int64_t token = begin; token < end; token += tile_tokens) {
        const int64_t num_tokens = std::min(tile_tokens, end - token);
        const AttentionTile tile = {b, g, token, num_tokens, first_position + token - begin};
        const int64_t first_key = first_seen(call, tile.first_position) / kSegmentKeys * kSegmentKeys;
        const int64_t end_of_keys = tile.first_position + num_tokens;
        const int64_t units = (end_of_keys - first_key + kSegmentKeys - 1) / kSegmentKeys;
        works.push_back({tile, first_key, end_of_keys, num_units, units, -1});
        num_units += units;
      }
    }
  }
  return works;
}

Range segment_of(const Work& work, int64_t unit) {
  const int64_t begin = work.first_key + (unit - work.first_unit) * kSegmentKeys;
  return {begin, std::min(begin + kSegmentKeys, work.end)};
}

int64_t cost_of(const Work& work, int64_t ratio, Range segment) {
  return (segment.end - segment.begin) * (work.tile.num_tokens * ratio + kStagingRows);
}

// Cuts the units into pieces of about equal cost, a few for each thread: the first unit of each, then one past the
// last.
std::vector<int64_t> divide(const std::vector<Work>& works, int64_t ratio, int64_t total, int64_t num_pieces) {
  std::vector<int64_t> bounds = {0};
  int64_t done = 0;
  for (const Work& work : works) {
    for (int64_t unit = work.first_unit; unit < work.first_unit + work.num_units; ++unit) {
      const int64_t cost = cost_of(work, ratio, segment_of(work, unit));
      // A unit begins a new piece if its middle lies past the equal share of those so far.
      if (unit > bounds.back() && (2 * done + cost) * num_pieces >= 2 * total * static_cast<int64_t>(bounds.size())) {
        bounds.push_back(unit);
      }
      done += cost;
    }
  }
  bounds.push_back(works.back().first_unit + works.back().num_units);
  return bounds;
}

// into = into followed by `next`, for keys in that order.
void merge(AttentionState into, AttentionState next, int64_t num_rows, int64_t padded) {
  for (int64_t row = 0; row < num_rows; ++row) {
    // A row that saw no key of the segment has nothing to add.
    if (next.sum[row] == 0.0f) continue;
    const float largest = std::max(into.largest[row], next.largest[row]);
    const float before = std::exp(into.largest[row] - largest);
    const float after = std::exp(next.largest[row] - largest);
    into.largest[row] = largest;
    into.sum[row] = into.sum[row] * before + next.sum[row] * after;
    float* to = into.values + row * padded;
    const float* from = next.values + row * padded;
    for (int64_t d = 0; d < padded; ++d) to[d] = to[d] * before + from[d] * after;
  }
}

// One call's tiles, dealt out in pieces. A tile whose segments fall to several pieces is put together when all are
// done; its segments are merged in the order of keys either way.
class AttentionRun {
 public:
  AttentionRun(const AttentionCall& call, const Kernels& kernels)
      : call_(call),
        kernels_(kernels),
        ratio_(call.num_heads / call.num_kv_heads),
        padded_(padded_head_dim(call.head_dim)),
        works_(plan_work(call)) {
    int64_t total = 0;
    for (const Work& work : works_) {
      total += cost_of(work, ratio_, {work.first_key, work.end});
      max_rows_ = std::max(max_rows_, num_rows(work));
    }
    bounds_ = divide(works_, ratio_, total, total < kMinCostToShare ? 1 : int64_t{num_threads()} * kPiecesPerThread);
    int64_t num_floats = 0;
    for (Work& work : works_) {
      const auto piece_of = [&](int64_t unit) { return std::upper_bound(bounds_.begin(), bounds_.end(), unit); };
      if (piece_of(work.first_unit) == piece_of(work.first_unit + work.num_units - 1)) continue;
      work.cut_at = num_floats;
      num_floats += work.num_units * state_floats(num_rows(work));
    }
    cut_states_.reset(new float[num_floats]);
  }

  int64_t num_pieces() const { return static_cast<int64_t>(bounds_.size()) - 1; }

  // Floats that `compute` needs.
  int64_t scratch_floats() const {
    return 2 * state_floats(max_rows_) + attention_scratch_floats(max_rows_, call_.head_dim);
  }

  void compute(int64_t piece, float* scratch) const {
    const Range units = {bounds_[piece], bounds_[piece + 1]};
    const auto starts_after = [](int64_t unit, const Work& work) { return unit < work.first_unit; };
    auto work = std::upper_bound(works_.begin(), works_.end(), units.begin, starts_after) - 1;
    for (; work != works_.end() && work->first_unit < units.end; ++work) {
      const Range own = {std::max(units.begin, work->first_unit),
                         std::min(units.end, work->first_unit + work->num_units)};
      if (work->cut_at < 0) {
        compute_whole(*work, scratch);
      } else {
        for (int64_t unit = own.begin; unit < own.end; ++unit) {
          kernels_.attend(call_, work->tile, segment_of(*work, unit), cut_state(*work, unit), scratch);
        }
      }
    }
  }

  void join_cut_tiles() const {
    for (const Work& work : works_) {
      if (work.cut_at < 0) continue;
      const AttentionState whole = cut_state(work, work.first_unit);
      for (int64_t i = 1; i < work.num_units; ++i) {
        merge(whole, cut_state(work, work.first_unit + i), num_rows(work), padded_);
      }
      kernels_.finish(call_, work.tile, whole);
    }
  }

 private:
  int64_t num_rows(const Work& work) const { return work.tile.num_tokens * ratio_; }
  int64_t state_floats(int64_t num_rows) const { return num_rows * (padded_ + 2); }
  AttentionState state_at(float* data, int64_t num_rows) const { return {data, data + num_rows, data + 2 * num_rows}; }
  AttentionState cut_state(const Work& work, int64_t unit) const {
    return state_at(cut_states_.get() + work.cut_at + (unit - work.first_unit) * state_floats(num_rows(work)),
                    num_rows(work));
  }

  void compute_whole(const Work& work, float* scratch) const {
    const int64_t rows = num_rows(work);
    const AttentionState whole = state_at(scratch, rows);
    const AttentionState part = state_at(scratch + state_floats(rows), rows);
    float* rest = scratch + 2 * state_floats(rows);
    for (int64_t i = 0; i < work.num_units; ++i) {
      kernels_.attend(call_, work.tile, segment_of(work, work.first_unit + i), i == 0 ? whole : part, rest);
      if (i > 0) merge(whole, part, rows, padded_);
    }
    kernels_.finish(call_, work.tile, whole);
  }

  const AttentionCall& call_;
  const Kernels& kernels_;
  const int64_t ratio_;
  const int64_t padded_;
  std::vector<Work> works_;
  std::vector<int64_t> bounds_;  // first unit of each piece, then one past the last
  std::unique_ptr<float[]> cut_states_;
  int64_t max_rows_ = 0;
};

}  // namespace

void paged_attention(const AttentionCall& call, Isa isa) {
  check(call);
  if (call.num_tokens == 0) return;
  AttentionRun run(call, kernels(isa));
  parallel_with_scratch(run.num_pieces() > 1, run.num_pieces(), 1, run.scratch_floats(),
                        [&](Range pieces, float* scratch) {
                          for (int64_t piece = pieces.begin; piece < pieces.end; ++piece) run.compute(piece, scratch);
                        });
  run.join_cut_tiles();
}

}  // namespace tercet
