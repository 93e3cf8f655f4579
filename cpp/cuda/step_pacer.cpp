#include "step_pacer.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace tercet::cuda {
namespace {

constexpr std::int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;
// A record is waited for awake for so long, since a thread that sleeps wakes up too late.
constexpr std::int64_t kAwake = 30 * kMicrosecond;
// What is lost at most when a step ends far sooner than the one before it: other contexts, the same graph.
constexpr std::int64_t kLongestNap = 200 * kMicrosecond;
constexpr std::int64_t kLongestOverdueNap = 50 * kMicrosecond;
// The clocks may drift apart by one part in so many.
constexpr std::int64_t kDriftPart = 10000;
constexpr std::int64_t kCheckDeviceEvery = 100 * kMillisecond;
constexpr std::int64_t kLongestStep = 60 * kSecond;

}  // namespace

std::shared_ptr<StepRun> StepPacer::begin(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps, bool stops) {
  if (device_.find(next_record() + on_their_way_.size()) != nullptr) {
    throw std::runtime_error("a step was committed that this loop did not launch");
  }
  run_ = std::make_shared<StepRun>();
  run_->graph = std::move(graph);
  run_->stream = stream;
  run_->num_to_launch = num_steps;
  run_->stops = stops;
  if (on_their_way_.empty()) launch();
  return run_;
}

bool StepPacer::stop() { return run_ != nullptr && run_->stops && std::exchange(run_->num_to_launch, 0) > 0; }

void StepPacer::settle() {
  stop();
  while (run_ != nullptr && run_->num_to_launch > 0) launch();
}

void StepPacer::drop() {
  if (run_ != nullptr) run_->num_to_launch = 0;
}

bool StepPacer::look(bool may_launch) {
  const StepRecord* record = on_their_way_.empty() ? nullptr : device_.find(next_record());
  if (record != nullptr) {
    take(*record);
  } else if (!on_their_way_.empty()) {
    look_at_the_device(device_.now_ns());
  }
  if (may_launch && launch_is_due(device_.now_ns())) launch();
  return record != nullptr;
}

bool StepPacer::launch_is_due(std::int64_t now) const {
  if (run_ == nullptr || run_->num_to_launch == 0) return false;
  if (on_their_way_.empty()) return true;
  return on_their_way_.size() == 1 && running().step_ns > 0 && now >= expected_end() - lead_ns_;
}

void StepPacer::launch() {
  device_.launch(*run_->graph, run_->stream);
  if (on_their_way_.empty()) {
    began_ns_ = device_seen_ns_ = device_.now_ns();
    device_waited_ = true;
  }
  on_their_way_.push_back(run_);
  ++run_->num_on_their_way;
  --run_->num_to_launch;
}

void StepPacer::take(const StepRecord& record) {
  const std::int64_t ended = on_host_clock(record.time_ns);
  std::int64_t took_ns = record.time_ns - last_ended_ns_;
  if (device_waited_) took_ns = std::min(took_ns, ended - began_ns_);
  took_ns = std::max<std::int64_t>(took_ns, 1);
  last_ended_ns_ = record.time_ns;
  began_ns_ = ended;
  device_seen_ns_ = device_.now_ns();
  const std::shared_ptr<StepRun> run = on_their_way_.front();
  on_their_way_.pop_front();
  --run->num_on_their_way;
  ++num_done_;
  ++run->num_done;
  // The first ones were launched as soon as could be.
  const bool launched_late = std::exchange(device_waited_, false) && run->num_done > 2;
  if (run->all_ended) return;

  // After a launch that came too late the next one aims earlier.
  run->graph->step_ns = std::max<std::int64_t>(took_ns - (launched_late ? lead_ns_ : 0), 1);
  if (record.num_live == 0) {
    run->all_ended = true;
    run->num_to_launch = 0;
  }
  run->untaken.push_back({{record.tokens(), record.tokens() + record.num_rows}, took_ns, record.time_ns});
}

// A record is seen as late as the thread wakes up; how far apart the clocks are, the promptest of late says.
std::int64_t StepPacer::on_host_clock(std::int64_t gpu_ns) {
  const std::int64_t now = device_.now_ns(), apart = now - gpu_ns, drift = (now - compared_ns_) / kDriftPart;
  clocks_apart_ns_ = compared_ns_ == 0 ? apart : std::min(apart, clocks_apart_ns_ + drift);
  compared_ns_ = now;
  return gpu_ns + clocks_apart_ns_;
}

void StepPacer::look_at_the_device(std::int64_t now) {
  if (now - device_seen_ns_ < kCheckDeviceEvery) return;
  device_seen_ns_ = now;
  if (device_.is_idle() && device_.find(next_record()) == nullptr) {
    throw std::runtime_error("a step has ended without leaving its record");
  }
  if (now - began_ns_ > kLongestStep) {
    throw std::runtime_error("a step has not ended in " + std::to_string(kLongestStep / kSecond) + " seconds");
  }
}

// Until the launch, for which the lead allows to wake up late, or until shortly before the end. What is overdue is
// looked for ever more seldom.
std::int64_t StepPacer::nap_ns(bool may_launch) {
  std::int64_t moment = began_ns_, awake = kAwake;
  if (!on_their_way_.empty() && running().step_ns > 0) {
    moment = expected_end();
    if (may_launch && run_->num_to_launch > 0 && on_their_way_.size() == 1) {
      moment -= lead_ns_;
      awake = 0;
    }
  }
  const std::int64_t left = moment - device_.now_ns();
  if (left > awake) return std::min(left - awake, kLongestNap);
  if (left > -kAwake) return 0;
  return std::min(-left / 8, kLongestOverdueNap);
}

}  // namespace tercet::cuda
