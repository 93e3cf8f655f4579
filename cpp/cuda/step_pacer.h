// When to launch the next step of a run. Plain C++, one thread at a time, no clock of its own: it can be run by hand.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
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

// A number of launches of one graph, and what has come of them.
struct StepRun {
  std::shared_ptr<StepGraph> graph;
  Stream stream;
  std::int64_t num_to_launch;
  bool stops;  // at the next boundary if it is told to; else it runs to its end whatever happens
  std::int64_t num_done = 0;
  int num_on_their_way = 0;
  bool all_ended = false;  // no row goes on
  std::deque<Step> untaken;

  // Whether all its steps are done, or no row goes on: then one more may be on its way, of empty rows, which nobody is
  // told of.
  bool is_over() const { return num_to_launch == 0 && (all_ended || num_on_their_way == 0); }
};

// A step is launched a little before the one that runs is expected to end, and in no case when two are on their way:
// early enough that the GPU does not wait, late enough that a step nobody wants any more is seldom among them. Runs
// follow each other in the same way.
class StepPacer {
 public:
  StepPacer(StepDevice& device, std::int64_t lead_ns) : device_(device), lead_ns_(lead_ns) {}

  // Begins a run, behind what is on its way. The run before must have nothing left to launch.
  std::shared_ptr<StepRun> begin(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps, bool stops);
  // Adds steps to the last run, unless no row goes on.
  void extend(int num_steps) { run_->num_to_launch += run_->all_ended ? 0 : num_steps; }
  // No further launches of the last run, if it stops; whether there were to be some.
  bool stop();
  // The same, and a run that does not stop is launched to its end.
  void settle();
  // No further launches.
  void drop();

  // Takes the next record if it is there, and launches a step if that is due and `may_launch`. Returns whether there
  // was one. Throws std::runtime_error if the device fails, or if a step takes longer than any can.
  bool look(bool may_launch);
  // How long to sleep before the next look.
  std::int64_t nap_ns(bool may_launch);

  bool is_idle() const { return on_their_way_.empty() && (run_ == nullptr || run_->num_to_launch == 0); }
  int num_on_their_way() const { return static_cast<int>(on_their_way_.size()); }

 private:
  bool launch_is_due(std::int64_t now) const;
  const StepGraph& running() const { return *on_their_way_.front()->graph; }
  std::int64_t expected_end() const { return began_ns_ + running().step_ns; }
  std::uint64_t next_record() const { return num_done_ + 1; }
  void launch();
  void take(const StepRecord& record);
  std::int64_t on_host_clock(std::int64_t gpu_ns);
  void look_at_the_device(std::int64_t now);

  StepDevice& device_;
  std::int64_t lead_ns_;
  std::shared_ptr<StepRun> run_;                       // the last that was begun
  std::deque<std::shared_ptr<StepRun>> on_their_way_;  // of each step that was launched and is not done
  std::uint64_t num_done_ = 0;                         // steps, ever
  std::int64_t began_ns_ = 0;                          // the oldest step on its way, by the host's clock
  bool device_waited_ = false;                         // for the launch of that step
  std::int64_t clocks_apart_ns_ = 0;                   // the host's minus the GPU's,
  std::int64_t compared_ns_ = 0;                       // as of this moment
  std::int64_t last_ended_ns_ = 0;                     // by the GPU's clock
  std::int64_t device_seen_ns_ = 0;                    // when it was last known to be well
};

}  // namespace tercet::cuda
