#include "tercet/block_table.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

namespace tercet {
namespace {

int blocks_for(int num_tokens, int block_size) {
  return static_cast<int>((static_cast<std::int64_t>(num_tokens) + block_size - 1) / block_size);
}

}  // namespace

BlockTable::BlockTable(std::shared_ptr<BlockPool> pool, const void* salt, std::size_t salt_size)
    : BlockTable(std::move(pool), hash_salt(salt, salt_size)) {}

BlockTable::BlockTable(std::shared_ptr<BlockPool> pool, const PrefixHash& salt)
    : pool_(std::move(pool)), salt_(salt), chain_(salt) {
  pool_->tables_.insert(this);
}

BlockTable::~BlockTable() {
  release();
  pool_->tables_.erase(this);
}

int BlockTable::match_prefix(const std::int32_t* token_ids, std::size_t count) {
  if (!blocks_.empty()) throw std::logic_error("match_prefix needs an empty block table");
  if (!pool_->prefix_caching()) return 0;
  const auto block_size = static_cast<std::size_t>(pool_->block_size());
  for (std::size_t first = 0; count - first >= block_size; first += block_size) {
    const PrefixHash hash = hash_block(chain_, token_ids + first, pool_->block_size());
    const std::optional<std::int32_t> block = pool_->find(chain_, hash, token_ids + first);
    if (!block) break;
    blocks_.push_back(*block);
    pool_->acquire(*block);
    chain_ = hash;
    num_tokens_ += pool_->block_size();
  }
  return num_tokens_;
}

std::vector<BlockCopy> BlockTable::reserve(int num_tokens) {
  if (num_tokens < 0) throw std::invalid_argument("num_tokens must not be negative, is " + std::to_string(num_tokens));
  std::vector<BlockCopy> copies;
  if (num_tokens <= num_tokens_) return copies;
  const int fresh = std::max(0, blocks_for(num_tokens, pool_->block_size()) - num_blocks());
  const bool copy = shares_partial_block();
  std::vector<std::int32_t> taken;
  copies.reserve(1);
  blocks_.reserve(blocks_.size() + fresh);
  pool_->allocate(fresh + (copy ? 1 : 0), taken);
  if (copy) {
    std::int32_t& partial = blocks_[num_tokens_ / pool_->block_size()];
    copies.emplace_back(partial, taken.back());
    pool_->release(partial);
    partial = taken.back();
    taken.pop_back();
  }
  blocks_.insert(blocks_.end(), taken.begin(), taken.end());
  return copies;
}

void BlockTable::commit(const std::int32_t* token_ids, std::size_t count) {
  if (count == 0) return;
  const int block_size = pool_->block_size();
  const std::int64_t room = static_cast<std::int64_t>(num_blocks()) * block_size - num_tokens_;
  if (count > static_cast<std::uint64_t>(room)) {
    throw std::logic_error("commit of " + std::to_string(count) + " tokens needs room that was reserved; there is " +
                           std::to_string(room));
  }
  if (shares_partial_block()) throw std::logic_error("commit into a block that a fork shares; reserve comes first");
  if (!pool_->prefix_caching()) {
    num_tokens_ += static_cast<int>(count);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    partial_.push_back(token_ids[i]);
    ++num_tokens_;
    if (static_cast<int>(partial_.size()) < block_size) continue;
    const PrefixHash hash = hash_block(chain_, partial_.data(), block_size);
    pool_->publish(blocks_[num_tokens_ / block_size - 1], chain_, hash, partial_.data());
    chain_ = hash;
    partial_.clear();
  }
}

std::unique_ptr<BlockTable> BlockTable::fork() const {
  std::unique_ptr<BlockTable> child(new BlockTable(pool_, salt_));
  child->chain_ = chain_;
  child->partial_ = partial_;
  child->num_tokens_ = num_tokens_;
  child->blocks_.assign(blocks_.begin(), blocks_.begin() + blocks_for(num_tokens_, pool_->block_size()));
  for (const std::int32_t block : child->blocks_) pool_->acquire(block);
  return child;
}

int BlockTable::release() {
  int freed = 0;
  // Back to front: of one chain the leaves are evicted before what they hang on, which is useless without them first.
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) freed += pool_->release(*block) ? 1 : 0;
  blocks_.clear();
  partial_.clear();
  num_tokens_ = 0;
  chain_ = salt_;
  return freed;
}

int BlockTable::trim(int num_tokens) {
  if (num_tokens < num_tokens_) {
    throw std::logic_error("trim to " + std::to_string(num_tokens) + " tokens of " + std::to_string(num_tokens_) +
                           " that are committed");
  }
  const int kept = blocks_for(num_tokens, pool_->block_size());
  int freed = 0;
  for (; num_blocks() > kept; blocks_.pop_back()) freed += pool_->release(blocks_.back()) ? 1 : 0;
  return freed;
}

void BlockTable::slots(std::int64_t first, std::int64_t count, std::int64_t* out) const {
  const int block_size = pool_->block_size();
  const std::int64_t room = static_cast<std::int64_t>(num_blocks()) * block_size;
  if (first < 0 || count < 0 || first > room || count > room - first) {
    throw std::out_of_range("slots of " + std::to_string(count) + " tokens from position " + std::to_string(first) +
                            " are not reserved; the table has room for " + std::to_string(room));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = first + i;
    out[i] = blocks_[position / block_size] * std::int64_t{block_size} + position % block_size;
  }
}

void BlockTable::check() const {
  const int block_size = pool_->block_size();
  const int full = num_tokens_ / block_size;
  const std::string name = "a table of " + std::to_string(num_tokens_) + " tokens ";
  if (blocks_for(num_tokens_, block_size) > num_blocks())
    throw PoolCorrupt(name + "has only " + std::to_string(num_blocks()) + " blocks");
  if (pool_->prefix_caching() && static_cast<int>(partial_.size()) != num_tokens_ % block_size)
    throw PoolCorrupt(name + "knows " + std::to_string(partial_.size()) + " ids of its last block");
  for (int i = full; i < num_blocks(); ++i) {
    if (pool_->published(blocks_[i])) throw PoolCorrupt(name + "has a published block that is not full");
    const bool shareable = i == full && num_tokens_ % block_size != 0;
    if (!shareable && pool_->references(blocks_[i]) != 1) throw PoolCorrupt(name + "shares a block without content");
  }
}

bool BlockTable::shares_partial_block() const {
  if (num_tokens_ % pool_->block_size() == 0) return false;
  return pool_->references(blocks_[num_tokens_ / pool_->block_size()]) > 1;
}

}  // namespace tercet
