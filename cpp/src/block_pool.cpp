#include "tercet/block_pool.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "tercet/block_table.h"

namespace tercet {

BlockPool::BlockPool(int num_blocks, int block_size, bool enable_prefix_caching)
    : block_size_(block_size), prefix_caching_(enable_prefix_caching) {
  if (num_blocks < 1) throw std::invalid_argument("num_blocks must be at least 1, is " + std::to_string(num_blocks));
  if (block_size < 1) throw std::invalid_argument("block_size must be at least 1, is " + std::to_string(block_size));
  blocks_.resize(num_blocks);
  if (prefix_caching_) token_ids_.resize(static_cast<std::size_t>(num_blocks) * block_size);
  free_.resize(num_blocks);
  // A stack: block 0 goes out first.
  for (int i = 0; i < num_blocks; ++i) free_[i] = num_blocks - 1 - i;
}

BlockPool::~BlockPool() { assert(tables_.empty()); }

void BlockPool::allocate(int count, std::vector<std::int32_t>& out) {
  if (count > num_free() + num_cached()) {
    throw OutOfBlocks(std::to_string(count) + " blocks are needed, " + std::to_string(num_free()) + " are free and " +
                      std::to_string(num_cached()) + " cached of " + std::to_string(num_total()));
  }
  out.reserve(out.size() + count);
  for (int i = 0; i < count; ++i) out.push_back(take_one());
}

std::int32_t BlockPool::take_one() {
  std::int32_t block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    block = oldest_;
    lru_remove(block);
    unpublish(block);
  }
  blocks_[block].references = 1;
  blocks_[block].duplicate = false;
  return block;
}

void BlockPool::acquire(std::int32_t block) {
  Block& b = blocks_[block];
  assert(b.references > 0 || b.published);
  if (b.references == 0) lru_remove(block);
  ++b.references;
}

bool BlockPool::release(std::int32_t block) {
  Block& b = blocks_[block];
  assert(b.references > 0);
  const bool last = --b.references == 0;
  if (b.duplicate && !(last && take_name(block))) {
    // Also where others go on with the duplicate: what this table published behind it is cached already.
    const auto first = by_hash_.find(b.hash);
    if (first != by_hash_.end() && blocks_[first->second].references == 0) {
      lru_remove(first->second);
      lru_append(first->second);
    }
  }
  if (!last) return false;
  b.duplicate = false;
  if (b.published) {
    lru_append(block);
  } else {
    free_.push_back(block);
  }
  return true;
}

void BlockPool::hand_out_last(const std::vector<std::int32_t>& blocks) {
  const std::unordered_set<std::int32_t> last(blocks.begin(), blocks.end());
  // The free list is a stack.
  std::stable_partition(free_.begin(), free_.end(), [&](std::int32_t block) { return last.count(block) != 0; });
}

std::optional<std::int32_t> BlockPool::find(const PrefixHash& parent, const PrefixHash& hash,
                                            const std::int32_t* token_ids) const {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return std::nullopt;
  const std::int32_t block = found->second;
  const std::int32_t* stored = token_ids_.data() + static_cast<std::size_t>(block) * block_size_;
  if (blocks_[block].parent != parent || !std::equal(token_ids, token_ids + block_size_, stored)) return std::nullopt;
  return block;
}

void BlockPool::publish(std::int32_t block, const PrefixHash& parent, const PrefixHash& hash,
                        const std::int32_t* token_ids) {
  Block& b = blocks_[block];
  assert(prefix_caching_ && b.references > 0 && !b.published);
  b.parent = parent;
  b.hash = hash;
  std::copy(token_ids, token_ids + block_size_, token_ids_.begin() + static_cast<std::ptrdiff_t>(block) * block_size_);
  b.duplicate = !take_name(block);
}

bool BlockPool::take_name(std::int32_t block) {
  Block& b = blocks_[block];
  if (!by_hash_.emplace(b.hash, block).second) return false;
  b.published = true;
  note_change(b.hash, true);
  return true;
}

void BlockPool::unpublish(std::int32_t block) {
  by_hash_.erase(blocks_[block].hash);
  blocks_[block].published = false;
  note_change(blocks_[block].hash, false);
}

void BlockPool::note_change(const PrefixHash& hash, bool stored) {
  const auto [change, is_new] = changes_.emplace(prefix_key(hash), stored);
  // The second change of a key undoes the first.
  if (!is_new) changes_.erase(change);
}

std::pair<BlockPool::Keys, BlockPool::Keys> BlockPool::take_events() {
  Keys removed, stored;
  for (const auto& [key, is_stored] : changes_) (is_stored ? stored : removed).push_back(key);
  changes_.clear();
  std::sort(removed.begin(), removed.end());
  std::sort(stored.begin(), stored.end());
  return {std::move(removed), std::move(stored)};
}

BlockPool::Keys BlockPool::published_keys() const {
  Keys keys;
  keys.reserve(by_hash_.size());
  for (const auto& [hash, block] : by_hash_) keys.push_back(prefix_key(hash));
  std::sort(keys.begin(), keys.end());
  return keys;
}

void BlockPool::lru_append(std::int32_t block) {
  Block& b = blocks_[block];
  b.older = newest_;
  b.newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::lru_remove(std::int32_t block) {
  Block& b = blocks_[block];
  (b.older == kNone ? oldest_ : blocks_[b.older].newer) = b.newer;
  (b.newer == kNone ? newest_ : blocks_[b.newer].older) = b.older;
  b.older = b.newer = kNone;
  --num_cached_;
}

void BlockPool::check() const {
  check_free_list();
  check_lru_list();
  check_published();
  check_references();
  if (num_used() != std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.references > 0; }))
    throw PoolCorrupt("free " + std::to_string(num_free()) + " + cached " + std::to_string(num_cached()) +
                      " + used is not the total " + std::to_string(num_total()));
}

void BlockPool::check_free_list() const {
  std::vector<bool> seen(blocks_.size());
  for (const std::int32_t block : free_) {
    const std::string name = "free block " + std::to_string(block);
    if (seen[block]) throw PoolCorrupt(name + " is in the free list twice");
    seen[block] = true;
    if (blocks_[block].references != 0) throw PoolCorrupt(name + " has references");
    if (blocks_[block].published) throw PoolCorrupt(name + " is published");
  }
}

void BlockPool::check_lru_list() const {
  int count = 0;
  std::int32_t older = kNone;
  std::unordered_set<PrefixHash, PrefixHashHasher> passed;
  for (std::int32_t block = oldest_; block != kNone; older = block, block = blocks_[block].newer) {
    const std::string name = "cached block " + std::to_string(block);
    if (++count > num_cached_) throw PoolCorrupt("the LRU list is longer than " + std::to_string(num_cached_));
    if (blocks_[block].older != older) throw PoolCorrupt(name + " is linked to the wrong older block");
    if (blocks_[block].references != 0) throw PoolCorrupt(name + " has references");
    if (!blocks_[block].published) throw PoolCorrupt(name + " is not published");
    if (passed.count(blocks_[block].parent)) throw PoolCorrupt(name + " would be evicted after its parent");
    passed.insert(blocks_[block].hash);
  }
  if (newest_ != older) throw PoolCorrupt("the LRU list does not end at its newest block");
  if (count != num_cached_) throw PoolCorrupt("the LRU list is shorter than " + std::to_string(num_cached_));
}

void BlockPool::check_published() const {
  std::size_t count = 0;
  for (std::int32_t block = 0; block < num_total(); ++block) {
    const Block& b = blocks_[block];
    if (b.duplicate && (b.published || b.references == 0))
      throw PoolCorrupt("block " + std::to_string(block) + " is a duplicate that is published or has no user");
    if (!b.published) continue;
    ++count;
    const std::string name = "published block " + std::to_string(block);
    if (!prefix_caching_) throw PoolCorrupt(name + " exists without prefix caching");
    const auto found = by_hash_.find(b.hash);
    if (found == by_hash_.end() || found->second != block) throw PoolCorrupt(name + " is not found by its hash");
    const std::int32_t* ids = token_ids_.data() + static_cast<std::size_t>(block) * block_size_;
    if (hash_block(b.parent, ids, block_size_) != b.hash) throw PoolCorrupt(name + " has a hash of other content");
  }
  if (count != by_hash_.size()) throw PoolCorrupt("the hash map names blocks that are not published");
}

void BlockPool::check_references() const {
  std::vector<std::int32_t> expected(blocks_.size());
  for (const BlockTable* table : tables_) {
    table->check();
    for (const std::int32_t block : table->blocks()) ++expected[block];
  }
  for (std::int32_t block = 0; block < num_total(); ++block) {
    if (blocks_[block].references != expected[block])
      throw PoolCorrupt("block " + std::to_string(block) + " counts " + std::to_string(blocks_[block].references) +
                        " references, tables hold " + std::to_string(expected[block]));
  }
}

}  // namespace tercet
