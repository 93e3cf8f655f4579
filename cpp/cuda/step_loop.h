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

// One thread begins runs and takes their steps; any may stop and close.
class StepLoop {
 public:
  // So many steps may wait to be taken before no more are launched. Throws std::system_error if there is no thread.
  StepLoop(std::unique_ptr<StepDevice> device, int max_untaken, std::int64_t lead_ns);
  ~StepLoop() { close(); }
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // Begins a run and launches its first step. A stop that came before is forgotten. Throws std::invalid_argument if
  // `num_steps` is below 1, std::logic_error if a run is on or the loop is closed, std::runtime_error if the device has
  // failed.
  void run(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps);

  // Adds steps to the run that is on. False if there is none, or it was stopped. It may still end earlier by itself.
  bool extend(int num_steps);

  // Waits for the run's next step; nothing if it is over. Throws std::runtime_error if the device has failed, after the
  // steps that were done, and std::logic_error if the loop is closed.
  std::optional<Step> next();

  // No further launches in this run. Takes no lock.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  // Stops the run, waits for what was launched and ends the thread. Whoever waits in `next` is told.
  void close();

 private:
  void work();
  void look(std::unique_lock<std::mutex>& lock);
  void check_usable() const;

  std::unique_ptr<StepDevice> device_;
  const std::size_t max_untaken_;
  std::atomic<bool> stopped_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  // While a run is on the thread alone uses it, without the mutex; else whoever has the mutex.
  StepPacer pacer_;
  // The rest is guarded by the mutex.
  bool running_ = false;
  bool closed_ = false;
  int num_added_ = 0;  // steps to add to the run
  std::deque<Step> untaken_;
  std::string failure_;

  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace tercet::cuda
