// The KV blocks of one device: who uses them, and what their content is.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tercet/prefix_hash.h"

namespace tercet {

class BlockTable;

// An allocation asked for more blocks than are free or cached. Nothing was changed.
class OutOfBlocks : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Found by check(): a bug. The message names the first broken invariant.
class PoolCorrupt : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// A block is in exactly one state:
//   free    no references, content worthless; in the free list
//   cached  no references, content kept under its prefix hash; in the LRU list, taken when no block is free
//   used    referenced by one or more block tables; it may be published under its hash too
// Invariant: num_free + num_cached + num_used = num_total. Of two cached blocks, the one that continues the other is
// the older one: a prefix is evicted from its end, since nothing is found behind a hole.
//
// Not thread-safe: the thread that owns the device owns the pool and its tables.
class BlockPool {
 public:
  // Throws std::invalid_argument unless num_blocks >= 1 and block_size >= 1.
  BlockPool(int num_blocks, int block_size, bool enable_prefix_caching);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int block_size() const { return block_size_; }
  bool prefix_caching() const { return prefix_caching_; }
  int num_total() const { return static_cast<int>(blocks_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int num_used() const { return num_total() - num_free() - num_cached(); }

  // Appends `count` blocks with one reference each to `out`: free ones first, then the least recently used cached ones,
  // whose content is forgotten. Throws OutOfBlocks, and changes nothing, if there are too few.
  void allocate(int count, std::vector<std::int32_t>& out);

  // One reference more, to a used or cached block.
  void acquire(std::int32_t block);

  // One reference less, to a used block. True if it was the last: the block is now cached if its name leads to it, else
  // free. Of blocks released one after another, the first is the first to be evicted: a chain is released from its end.
  bool release(std::int32_t block);

  // Those of `blocks` that are free by now are taken after all other free ones.
  void hand_out_last(const std::vector<std::int32_t>& blocks);

  int references(std::int32_t block) const { return blocks_[block].references; }
  bool published(std::int32_t block) const { return blocks_[block].published; }

  // The block published under `hash` with this parent and these block_size token ids. Takes no reference.
  std::optional<std::int32_t> find(const PrefixHash& parent, const PrefixHash& hash,
                                   const std::int32_t* token_ids) const;

  // Lets later prefixes find a used block by its hash. If a block has that name already, it stays and this one remains
  // a private duplicate: tables are append-only, so it is never swapped for the first. When it is released, it takes
  // the place of the first if that is gone by then, or else makes it as recent as itself: what was published behind the
  // duplicate hangs on whichever block has the name.
  void publish(std::int32_t block, const PrefixHash& parent, const PrefixHash& hash, const std::int32_t* token_ids);

  // Keys (prefix_key) of blocks, ascending.
  using Keys = std::vector<std::uint64_t>;

  // What became unfindable and findable since the last call; what did both, in any order, is in neither.
  std::pair<Keys, Keys> take_events();

  // Of all published blocks.
  Keys published_keys() const;

  // Throws PoolCorrupt unless every invariant holds. O(blocks + table entries).
  void check() const;

 private:
  friend class BlockTable;  // registers itself in tables_

  static constexpr std::int32_t kNone = -1;

  struct Block {
    std::int32_t references = 0;
    bool published = false;
    bool duplicate = false;      // named, but another block had the name first
    std::int32_t older = kNone;  // neighbours in the LRU list
    std::int32_t newer = kNone;
    PrefixHash parent;  // valid if published or a duplicate
    PrefixHash hash;
  };

  std::int32_t take_one();
  bool take_name(std::int32_t block);
  void unpublish(std::int32_t block);
  void note_change(const PrefixHash& hash, bool stored);
  void lru_append(std::int32_t block);
  void lru_remove(std::int32_t block);
  void check_free_list() const;
  void check_lru_list() const;
  void check_published() const;
  void check_references() const;

  const int block_size_;
  const bool prefix_caching_;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> token_ids_;  // [N, S] of published blocks and duplicates; empty without prefix caching
  std::vector<std::int32_t> free_;
  std::int32_t oldest_ = kNone;
  std::int32_t newest_ = kNone;
  int num_cached_ = 0;
  std::unordered_map<PrefixHash, std::int32_t, PrefixHashHasher> by_hash_;
  // Key -> whether it is stored now, of keys for which that has changed since take_events: at most those published now
  // and those published then, whether or not somebody takes them.
  std::unordered_map<std::uint64_t, bool> changes_;
  std::unordered_set<const BlockTable*> tables_;
};

}  // namespace tercet
