// The KV blocks of one sequence, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tercet/block_pool.h"

namespace tercet {

// A copy of a whole block that has to be done: (source, destination).
using BlockCopy = std::pair<std::int32_t, std::int32_t>;

// Life of a table: match_prefix once, then any number of [reserve, write the KV, commit], then release. Position p is
// in block p / S of the table, slot p % S. Tokens are *committed* when their KV is written; committed tokens never
// change (append-only), and only committed full blocks are published.
//
// A table keeps its pool alive and releases its blocks when it is destroyed. Not thread-safe, like its pool.
class BlockTable {
 public:
  // The chain of prefix hashes starts from `salt`.
  BlockTable(std::shared_ptr<BlockPool> pool, const void* salt, std::size_t salt_size);
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Takes the longest run of cached full blocks that `token_ids` starts with and returns their tokens, a multiple of S
  // (0 without prefix caching). They count as committed. Pass all but the last token of a prompt: at least one has to
  // be computed. Throws std::logic_error unless the table is empty.
  int match_prefix(const std::int32_t* token_ids, std::size_t count);

  // Makes room for `num_tokens` tokens in all, and makes the place after the last committed token writable: if a fork
  // shares that block, it is replaced. Returns the copies to do, in order, before the next write to the cache. No-op if
  // num_tokens are committed already. Throws OutOfBlocks, and changes nothing, if the pool has too few blocks.
  std::vector<BlockCopy> reserve(int num_tokens);

  // Records tokens whose KV has been written behind the committed ones; publishes the blocks that became full. Throws
  // std::logic_error, and changes nothing, if room was not reserved or a fork shares the block that was written.
  void commit(const std::int32_t* token_ids, std::size_t count);

  // Gives back the blocks behind those of the first num_tokens tokens, which were reserved in vain; returns how many.
  // Throws std::logic_error, and changes nothing, if more tokens are committed.
  int trim(int num_tokens);

  // A table with the same committed tokens that shares their blocks. Room reserved beyond them is not shared.
  std::unique_ptr<BlockTable> fork() const;

  // Gives all blocks back and returns how many have no other user. The table is empty then; a second call returns 0.
  int release();

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_tokens() const { return num_tokens_; }
  int block_size() const { return pool_->block_size(); }
  const std::vector<std::int32_t>& blocks() const { return blocks_; }

  // Writes block * S + offset of positions first, first + 1, ... to out[0 .. count). Throws std::out_of_range unless
  // room for all of them is reserved.
  void slots(std::int64_t first, std::int64_t count, std::int64_t* out) const;

  // Throws PoolCorrupt unless counts and blocks agree.
  void check() const;

 private:
  BlockTable(std::shared_ptr<BlockPool> pool, const PrefixHash& salt);
  bool shares_partial_block() const;

  const std::shared_ptr<BlockPool> pool_;
  const PrefixHash salt_;
  std::vector<std::int32_t> blocks_;
  int num_tokens_ = 0;
  PrefixHash chain_;                   // of the last full committed block, or the salt's
  std::vector<std::int32_t> partial_;  // committed token ids behind it; empty without prefix caching
};

}  // namespace tercet
