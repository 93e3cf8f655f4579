// Random operations on a pool and its tables, to be built with sanitizers: python cpp/build.py --sanitize.
//
//   driver [seed [rounds]]
//
// Every table is mirrored by what its tokens are, and every slot by the token that was written to it, so that a wrong
// hit or a missing copy is found, not only a wrong access. The sampler runs beside it on rows of awkward lengths.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tercet/block_pool.h"
#include "tercet/block_table.h"
#include "tercet/sampler.h"

namespace tercet {
namespace {

constexpr int kOperations = 2000;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // From low to high, both included.
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool one_in(int n) { return number(1, n) == 1; }
  float normal() { return std::normal_distribution<float>()(engine_); }

 private:
  std::mt19937_64 engine_;
};

void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

struct Mirrored {
  std::unique_ptr<BlockTable> table;
  int salt;
  std::vector<std::int32_t> tokens;
};

class Round {
 public:
  explicit Round(std::uint64_t seed)
      : random_(seed),
        block_size_(1 << random_.number(0, 3)),
        pool_(std::make_shared<BlockPool>(random_.number(1, 24), block_size_, !random_.one_in(5))),
        slots_(static_cast<std::size_t>(pool_->num_total()) * block_size_) {}

  void run() {
    for (int i = 0; i < kOperations; ++i) {
      operate();
      pool_->check();
      if (random_.one_in(4)) follow_events();
      for (const Mirrored& mirrored : tables_) check(mirrored);
    }
    tables_.clear();
    pool_->check();
    expect(pool_->num_used() == 0, "blocks are in use without a table");
    follow_events();
  }

 private:
  void operate() {
    if (tables_.empty() || random_.one_in(8)) return create();
    Mirrored& mirrored = tables_[random_.number(0, static_cast<int>(tables_.size()) - 1)];
    switch (random_.number(0, 9)) {
      case 0:
        std::swap(mirrored, tables_.back());
        return tables_.pop_back();
      case 1:
        mirrored.table->release();
        return mirrored.tokens.clear();
      case 2: {
        Mirrored child{mirrored.table->fork(), mirrored.salt, mirrored.tokens};
        return tables_.push_back(std::move(child));
      }
      default:
        return grow(mirrored);
    }
  }

  // Somebody who hears of every change knows what is published.
  void follow_events() {
    const auto [removed, stored] = pool_->take_events();
    for (const std::uint64_t key : removed) expect(known_.erase(key) == 1, "an event removes what was not stored");
    for (const std::uint64_t key : stored) expect(known_.insert(key).second, "an event stores what was stored");
    const BlockPool::Keys keys = pool_->published_keys();
    expect(std::equal(known_.begin(), known_.end(), keys.begin(), keys.end()), "events and published keys differ");
  }

  void create() {
    const int salt = random_.number(0, 2);
    const std::string name(static_cast<std::size_t>(salt) * 40, 'x');
    Mirrored mirrored{std::make_unique<BlockTable>(pool_, name.data(), name.size()), salt, {}};
    const std::vector<std::int32_t> prompt = tokens(random_.number(0, 6 * block_size_));
    const int found = mirrored.table->match_prefix(prompt.data(), prompt.size());
    mirrored.tokens.assign(prompt.begin(), prompt.begin() + found);
    tables_.push_back(std::move(mirrored));
  }

  void grow(Mirrored& mirrored) {
    BlockTable& table = *mirrored.table;
    const std::vector<std::int32_t> fresh = tokens(random_.number(0, 3 * block_size_));
    const int first = table.num_tokens();
    const int count = static_cast<int>(fresh.size());
    const int spare = random_.one_in(3) ? random_.number(0, 2 * block_size_) : 0;
    const std::vector<std::int32_t> before = table.blocks();
    try {
      for (const auto& [source, destination] : table.reserve(first + count + spare)) {
        std::copy_n(slots_.begin() + source * block_size_, block_size_, slots_.begin() + destination * block_size_);
      }
    } catch (const OutOfBlocks&) {
      expect(table.blocks() == before, "a failed reserve changed the table");
      return;
    }
    std::vector<std::int64_t> places(count);
    table.slots(first, count, places.data());
    for (int i = 0; i < count; ++i) {
      mirrored.tokens.push_back(fresh[i]);
      slots_[places[i]] = content(mirrored, first + i);
    }
    table.commit(fresh.data(), fresh.size());
    if (random_.one_in(2)) {
      const int reached = table.num_tokens() + random_.number(0, block_size_);
      const int room = table.num_blocks() - (reached + block_size_ - 1) / block_size_;
      expect(table.trim(reached) == std::max(0, room), "a trim gave back other blocks than those behind");
    }
  }

  // Few different ids, so that prefixes meet.
  std::vector<std::int32_t> tokens(int count) {
    std::vector<std::int32_t> ids(count);
    for (std::int32_t& id : ids) id = random_.number(0, 1);
    return ids;
  }

  // What the KV at `position` depends on, mixed into 64 bits: the salt and all tokens up to there.
  static std::uint64_t content(const Mirrored& mirrored, int position) {
    std::uint64_t value = 1 + static_cast<std::uint64_t>(mirrored.salt);
    for (int i = 0; i <= position; ++i)
      value = value * 6364136223846793005u + 1442695040888963407u + mirrored.tokens[i];
    return value;
  }

  void check(const Mirrored& mirrored) const {
    const int count = mirrored.table->num_tokens();
    expect(count == static_cast<int>(mirrored.tokens.size()), "a table lost count of its tokens");
    std::vector<std::int64_t> places(count);
    mirrored.table->slots(0, count, places.data());
    for (int i = 0; i < count; ++i) {
      expect(slots_[places[i]] == content(mirrored, i), "a table sees the KV of other tokens");
    }
  }

  Random random_;
  const int block_size_;
  const std::shared_ptr<BlockPool> pool_;
  std::vector<std::uint64_t> slots_;  // [N * S]
  std::vector<Mirrored> tables_;
  std::set<std::uint64_t> known_;
};

void sample_randomly(std::uint64_t seed) {
  Random random(seed);
  for (int i = 0; i < 50; ++i) {
    std::vector<float> logits(static_cast<std::size_t>(random.number(1, 700)));
    for (float& logit : logits) logit = random.one_in(9) ? -std::numeric_limits<float>::infinity() : random.normal();
    if (random.one_in(9)) logits.back() = std::numeric_limits<float>::quiet_NaN();
    const auto vocab_size = static_cast<int>(logits.size());
    const SamplingParams params{random.number(0, 3) / 2.0f,
                                random.number(0, 2) * vocab_size / 3,
                                random.number(0, 4) / 4.0f,
                                random.number(0, 2) / 2.0f,
                                static_cast<std::uint64_t>(random.number(0, 1 << 30)) << 33,
                                std::int64_t{1} << random.number(0, 40)};
    std::vector<float> scratch(static_cast<std::size_t>(sampler_scratch_floats(vocab_size)));
    const std::int64_t chosen = row_sampler()(logits.data(), vocab_size, params, scratch.data());
    expect(chosen >= -1 && chosen < vocab_size, "a token outside the vocabulary");
    expect(chosen < 0 || logits[chosen] > -std::numeric_limits<float>::infinity(), "a masked token was chosen");
  }
}

}  // namespace
}  // namespace tercet

int main(int argc, char** argv) {
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const std::uint64_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 40;
  for (std::uint64_t round = seed; round < seed + rounds; ++round) {
    try {
      tercet::Round(round).run();
      tercet::sample_randomly(round);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(round), error.what());
      return 1;
    }
  }
  std::printf("%llu rounds of %d random operations: no fault\n", static_cast<unsigned long long>(rounds),
              tercet::kOperations);
  return 0;
}
