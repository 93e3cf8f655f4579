// When to launch the next step of a run. Plain C++, one thread at a time, no clock of its own: it can be run by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dtype.h"
#include "step_record.h"

struct CUgraph_st;
struct CUgraphExec_st;

namespace tercet::cuda {

// A step that can be launched, and what is known of it.
struct StepGraph {
  CUgraphExec_st* exec = nullptr;
  std::int64_t step_ns = 0;  // that the next one is expected to take; 0: none has run yet
};

// What runs steps. All may throw std::runtime_error, which says that the device is of no further use.
class StepDevice {
 public:
  virtual ~StepDevice() = default;

  virtual void begin_thread() = 0;  // once, on the thread that waits for steps
  virtual void launch(const StepGraph& graph, Stream stream) = 0;
  // The record of that step, valid until as many more as the ring has places for have been launched; null: not yet.
  virtual const StepRecord* find(std::uint64_t sequence) = 0;
  // Whether all that was launched has ended.
  virtual bool is_idle() = 0;
  virtual std::int64_t now_ns() = 0;
  virtual void sleep(std::int64_t ns) = 0;  // 0: for as short as can be, without giving the CPU away
};

// A step that was done.
struct Step {
  std::vector<std::int32_t> tokens;  // of each row
  std::int64_t took_ns;
  std::int64_t ended_ns;  // of the GPU's clock
};

// A run is a number of launches of one graph. The next step is launched a little before the one that runs is expected
// to end, and in no case when two are on their way: early enough that the GPU does not wait, late enough that a step
// nobody wants any more is seldom among them.
class StepPacer {
 public:
  StepPacer(StepDevice& device, std::int64_t lead_ns) : device_(device), lead_ns_(lead_ns) {}

  // Begins a run and launches its first step. Not before the last one is over.
  void begin(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps);
  // Adds steps, unless no row goes on.
  void extend(int num_steps) { num_to_launch_ += all_ended_ ? 0 : num_steps; }
  // No further launches.
  void stop() { num_to_launch_ = 0; }

  // Takes the next record if it is there and launches a step if that is due and `may_launch`. Throws std::runtime_error
  // if the device fails, or if a step takes longer than any can.
  std::optional<Step> look(bool may_launch);
  // How long to sleep before the next look.
  std::int64_t nap_ns(bool may_launch);

  // Whether all steps of the run are done, or no row goes on: then one more may be on its way, of empty rows, which
  // nobody is told of.
  bool is_over() const { return num_to_launch_ == 0 && (all_ended_ || num_on_their_way() == 0); }
  int num_on_their_way() const { return static_cast<int>(num_launched_ - num_done_); }

 private:
  bool launch_is_due(std::int64_t now) const;
  std::int64_t expected_end() const { return began_ns_ + graph_->step_ns; }
  void launch();
  std::optional<Step> take(const StepRecord& record);
  std::int64_t on_host_clock(std::int64_t gpu_ns);
  void look_at_the_device(std::int64_t now);

  StepDevice& device_;
  std::int64_t lead_ns_;
  std::shared_ptr<StepGraph> graph_;
  Stream stream_ = nullptr;
  std::int64_t num_to_launch_ = 0;
  bool all_ended_ = false;          // no row of the run goes on
  std::uint64_t num_launched_ = 0;  // ever
  std::uint64_t num_done_ = 0;
  std::uint64_t first_ = 1;           // the run's first step; those before are of no interest
  std::int64_t began_ns_ = 0;         // the oldest step on its way, by the host's clock
  bool device_waited_ = false;        // for the launch of that step
  std::int64_t clocks_apart_ns_ = 0;  // the host's minus the GPU's,
  std::int64_t compared_ns_ = 0;      // as of this moment
  std::int64_t last_ended_ns_ = 0;    // by the GPU's clock
  std::int64_t device_seen_ns_ = 0;   // when it was last known to be well
};

}  // namespace tercet::cuda
