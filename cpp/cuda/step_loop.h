// Runs of steps, one launched behind the other by a thread of its own, and their records handed out as they come.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "step_pacer.h"

namespace tercet::cuda {

// One thread begins runs and takes their steps; any may stop, wake and close.
class StepLoop {
 public:
  // So many steps may wait to be taken before no more are launched. Throws std::system_error if there is no thread.
  StepLoop(std::unique_ptr<StepDevice> device, int max_untaken, std::int64_t lead_ns);
  ~StepLoop() { close(); }
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // Begins a run, behind those that are on: its first step is launched when theirs are about to end, or at once. A stop
  // that came before is forgotten; if not `stops`, later ones are not for this run. Throws std::invalid_argument if
  // `num_steps` is below 1, std::logic_error if the run before would launch more or the loop is closed,
  // std::runtime_error if the device has failed.
  void run(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps, bool stops);

  // Launches nothing more of the last run, or all of it if it does not stop. Returns how many of its steps are still to
  // be taken, one of empty rows included. What the caller gives the stream now comes behind them.
  int settle();

  // Adds steps to the run that is on. False if there is none, or it was stopped. It may still end earlier by itself.
  bool extend(int num_steps);

  // Waits until `next` need not, or for `wake`; whether the former.
  bool wait();
  void wake();

  // Waits for the next step of the oldest run; nothing, once, when that is over, and where there is no run. Throws
  // std::runtime_error if the device has failed, after the steps that were done, std::logic_error if the loop is
  // closed.
  std::optional<Step> next();

  // No further launches in the last run. Takes no lock.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  // Drops what is not launched, waits for the rest and ends the thread. Whoever waits in `next` is told.
  void close();

 private:
  void work();
  void check_usable() const;
  bool has_news() const;

  std::unique_ptr<StepDevice> device_;
  const std::size_t max_untaken_;
  std::atomic<bool> stopped_{false};

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  StepPacer pacer_;
  std::deque<std::shared_ptr<StepRun>> runs_;  // until it was told that they are over
  bool closed_ = false;
  bool woken_ = false;
  std::string failure_;

  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace tercet::cuda
