#include "tercet/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
  int64_t num_keys;
  int64_t first_unit;
  int64_t num_units;
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
        const int64_t num_keys = tile.first_position + num_tokens;
        const int64_t units = (num_keys + kSegmentKeys - 1) / kSegmentKeys;
        works.push_back({tile, num_keys, num_units, units});
        num_units += units;
      }
    }
  }
  return works;
}

Range segment_of(const Work& work, int64_t unit) {
  const int64_t begin = (unit - work.first_unit) * kSegmentKeys;
  return {begin, std::min(begin + kSegmentKeys, work.num_keys)};
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

// Floats of one state of `num_rows` rows.
int64_t state_floats(int64_t num_rows, int64_t padded) { return num_rows * (padded + 2); }

AttentionState state_at(float* data, int64_t num_rows) { return {data, data + num_rows, data + 2 * num_rows}; }

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

float* thread_scratch(int64_t num_floats) {
  static thread_local std::vector<float> scratch;
  if (static_cast<int64_t>(scratch.size()) < num_floats) scratch.resize(num_floats);
  return scratch.data();
}

}  // namespace

void paged_attention(const AttentionCall& call, Isa isa) {
  check(call);
  if (call.num_tokens == 0) return;
  const Kernels& run = kernels(isa);
  const int64_t ratio = call.num_heads / call.num_kv_heads;
  const int64_t padded = padded_head_dim(call.head_dim);
  const std::vector<Work> works = plan_work(call);
  int64_t total = 0;
  int64_t max_rows = 0;
  for (const Work& work : works) {
    total += cost_of(work, ratio, {0, work.num_keys});
    max_rows = std::max(max_rows, work.tile.num_tokens * ratio);
  }
  const int64_t most_pieces = total < kMinCostToShare ? 1 : int64_t{num_threads()} * kPiecesPerThread;
  const std::vector<int64_t> bounds = divide(works, ratio, total, most_pieces);

  // A tile whose segments fall to several pieces is put together when all are done: `cut` keeps their states.
  std::vector<int64_t> cut_at(works.size(), -1);
  int64_t num_cut_floats = 0;
  for (size_t i = 0; i < works.size(); ++i) {
    const auto piece_of = [&](int64_t unit) { return std::upper_bound(bounds.begin(), bounds.end(), unit); };
    const int64_t first = works[i].first_unit;
    if (piece_of(first) == piece_of(first + works[i].num_units - 1)) continue;
    cut_at[i] = num_cut_floats;
    num_cut_floats += works[i].num_units * state_floats(works[i].tile.num_tokens * ratio, padded);
  }
  const std::unique_ptr<float[]> cut(new float[num_cut_floats]);

  const auto run_piece = [&](int64_t begin, int64_t end) {
    float* scratch =
        thread_scratch(2 * state_floats(max_rows, padded) + attention_scratch_floats(max_rows, call.head_dim));
    auto work = std::upper_bound(works.begin(), works.end(), begin,
                                 [](int64_t unit, const Work& other) { return unit < other.first_unit; }) -
                1;
    for (; work != works.end() && work->first_unit < end; ++work) {
      const int64_t num_rows = work->tile.num_tokens * ratio;
      const int64_t at = cut_at[work - works.begin()];
      const AttentionState whole = state_at(scratch, num_rows);
      const AttentionState part = state_at(scratch + state_floats(num_rows, padded), num_rows);
      float* rest = scratch + 2 * state_floats(num_rows, padded);
      const int64_t last = std::min(end, work->first_unit + work->num_units);
      for (int64_t unit = std::max(begin, work->first_unit); unit < last; ++unit) {
        const Range segment = segment_of(*work, unit);
        if (at >= 0) {
          float* data = cut.get() + at + (unit - work->first_unit) * state_floats(num_rows, padded);
          run.attend(call, work->tile, segment, state_at(data, num_rows), rest);
        } else if (unit == work->first_unit) {
          run.attend(call, work->tile, segment, whole, rest);
        } else {
          run.attend(call, work->tile, segment, part, rest);
          merge(whole, part, num_rows, padded);
        }
      }
      if (at < 0) run.finish(call, work->tile, whole);
    }
  };
  const auto num_pieces = static_cast<int64_t>(bounds.size()) - 1;
  parallel(num_pieces > 1, num_pieces, 1, [&](Range pieces) {
    for (int64_t piece = pieces.begin; piece < pieces.end; ++piece) run_piece(bounds[piece], bounds[piece + 1]);
  });

  for (size_t i = 0; i < works.size(); ++i) {
    if (cut_at[i] < 0) continue;
    const int64_t num_rows = works[i].tile.num_tokens * ratio;
    float* data = cut.get() + cut_at[i];
    for (int64_t unit = 1; unit < works[i].num_units; ++unit) {
      merge(state_at(data, num_rows), state_at(data + unit * state_floats(num_rows, padded), num_rows), num_rows,
            padded);
    }
    run.finish(call, works[i].tile, state_at(data, num_rows));
  }
}

void write_kv(const KvWrite& write) {
  const int64_t num_slots = write.num_blocks * write.block_size;
  for (int64_t token = 0; token < write.num_tokens; ++token) {
    if (write.slots[token] < 0 || write.slots[token] >= num_slots) {
      throw std::out_of_range("token " + std::to_string(token) + " goes to slot " + std::to_string(write.slots[token]) +
                              ", the cache has " + std::to_string(num_slots));
    }
  }
  const size_t element = dtype_size(write.dtype);
  const size_t row = element * write.head_dim;
  const auto* k = static_cast<const char*>(write.k);
  const auto* v = static_cast<const char*>(write.v);
  const int64_t num_elements = write.num_kv_heads * write.head_dim;
  parallel(write.num_tokens * num_elements >= kMinElementsToShare, write.num_tokens, row_grain(num_elements),
           [&](Range tokens) {
             for (int64_t token = tokens.begin; token < tokens.end; ++token) {
               const int64_t block = write.slots[token] / write.block_size;
               const int64_t offset = write.slots[token] % write.block_size;
               for (int64_t g = 0; g < write.num_kv_heads; ++g) {
                 const int64_t at = (block * write.num_kv_heads + g) * write.block_size + offset;
                 std::memcpy(static_cast<char*>(write.k_cache) + at * row,
                             k + (token * write.k_token_stride + g * write.k_head_stride) * element, row);
                 std::memcpy(static_cast<char*>(write.v_cache) + at * row,
                             v + (token * write.v_token_stride + g * write.v_head_stride) * element, row);
               }
             }
           });
}

}  // namespace tercet
