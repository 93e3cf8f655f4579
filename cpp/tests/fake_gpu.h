// A GPU that is a clock which only looking and sleeping move, for the tests of the step loop.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "step_pacer.h"

namespace tercet::cuda {

constexpr std::int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

// Runs one step behind the other. Step s has two rows, whose tokens are s and s + 1.
class FakeGpu : public StepDevice {
 public:
  static constexpr int kNumRecords = 4;
  static constexpr std::int64_t kLaunchTakes = 8 * kMicrosecond;

  struct Launched {
    std::int64_t at, starts, ends;
  };

  std::function<std::int64_t(std::size_t)> duration = [](std::size_t) { return kMillisecond; };
  std::function<int(std::size_t)> num_live = [](std::size_t) { return 2; };
  bool broken = false;  // says so when it is asked
  bool loses_records = false;
  std::vector<Launched> steps;
  std::atomic<int> num_launched{0};
  std::atomic<std::int64_t> now{kSecond};
  std::atomic<std::int64_t> awake_ns{0};  // that the thread was
  std::int64_t oversleeps_ns = 0;         // when it is to sleep

  void begin_thread() override {}
  void launch(const StepGraph&, Stream) override {
    if (broken) throw std::runtime_error("the fake GPU is broken");
    const std::int64_t free = steps.empty() ? 0 : steps.back().ends, starts = std::max(now.load() + kLaunchTakes, free);
    expect(num_unfinished() < 2, "three steps on their way");
    const std::int64_t took = duration(steps.size());
    steps.push_back({now.load(), starts, starts + took});
    ++num_launched;
  }
  const StepRecord* find(std::uint64_t sequence) override {
    awake_ns += 100;
    now += 100;
    const std::size_t step = sequence - 1;
    if (loses_records || step >= steps.size() || steps[step].ends > now) return nullptr;
    Record& record = records_[step % kNumRecords];
    const auto token = static_cast<std::int32_t>(step);
    record = {{sequence, steps[step].ends - kSecond / 2, 2, num_live(step)}, {token, token + 1}};
    return &record.header;
  }
  bool is_idle() override {
    if (broken) throw std::runtime_error("the fake GPU is broken");
    return num_unfinished() == 0;
  }
  std::int64_t now_ns() override { return now; }
  void sleep(std::int64_t ns) override {
    if (ns == 0) awake_ns += kMicrosecond;
    now += ns == 0 ? kMicrosecond : ns + oversleeps_ns;
    std::this_thread::yield();
  }

  int num_unfinished() const {
    return static_cast<int>(std::count_if(steps.begin(), steps.end(), [&](const Launched& s) { return s.ends > now; }));
  }

 private:
  struct Record {
    StepRecord header;
    std::int32_t tokens[2];
  };

  Record records_[kNumRecords];
};

}  // namespace tercet::cuda
