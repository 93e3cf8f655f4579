#include "step_loop.h"

#include <stdexcept>
#include <utility>

namespace tercet::cuda {

StepLoop::StepLoop(std::unique_ptr<StepDevice> device, int max_untaken, std::int64_t lead_ns)
    : device_(std::move(device)), max_untaken_(static_cast<std::size_t>(max_untaken)), pacer_(*device_, lead_ns) {
  thread_ = std::thread([this] { work(); });
}

void StepLoop::check_usable() const {
  if (!failure_.empty()) throw std::runtime_error(failure_);
  if (closed_) throw std::logic_error("the step loop is closed");
}

void StepLoop::run(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps, bool stops) {
  if (num_steps < 1) throw std::invalid_argument("a run has at least one step, not " + std::to_string(num_steps));
  const std::lock_guard lock(mutex_);
  check_usable();
  if (!runs_.empty() && runs_.back()->num_to_launch > 0) throw std::logic_error("the run before goes on");
  stopped_.store(false, std::memory_order_relaxed);
  // Here and not in the thread, whose waking would take longer than all the rest.
  runs_.push_back(pacer_.begin(std::move(graph), stream, num_steps, stops));
  changed_.notify_all();
}

int StepLoop::settle() {
  const std::lock_guard lock(mutex_);
  check_usable();
  if (runs_.empty()) return 0;
  pacer_.settle();
  const StepRun& last = *runs_.back();
  return last.num_on_their_way + static_cast<int>(last.untaken.size());
}

bool StepLoop::extend(int num_steps) {
  const std::lock_guard lock(mutex_);
  if (closed_ || runs_.empty() || runs_.back()->is_over() || stopped_.load(std::memory_order_relaxed)) return false;
  pacer_.extend(num_steps);
  changed_.notify_all();
  return true;
}

bool StepLoop::has_news() const {
  return closed_ || !failure_.empty() || runs_.empty() || !runs_.front()->untaken.empty() || runs_.front()->is_over();
}

bool StepLoop::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return woken_ || has_news(); });
  woken_ = false;
  return has_news();
}

void StepLoop::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

std::optional<Step> StepLoop::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return has_news(); });
  if (closed_) check_usable();
  if (!runs_.empty() && !runs_.front()->untaken.empty()) {
    std::deque<Step>& untaken = runs_.front()->untaken;
    Step step = std::move(untaken.front());
    untaken.pop_front();
    return step;
  }
  check_usable();
  if (!runs_.empty()) runs_.pop_front();
  return std::nullopt;
}

void StepLoop::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    pacer_.drop();
    changed_.notify_all();
  }
  std::call_once(joined_, [this] { thread_.join(); });
}

void StepLoop::work() {
  std::unique_lock lock(mutex_);
  try {
    device_->begin_thread();
    for (;;) {
      changed_.wait(lock, [this] { return !pacer_.is_idle() || closed_; });
      // After a close as well: what was launched uses memory that goes with the device.
      if (pacer_.is_idle()) return;
      if (stopped_.load(std::memory_order_relaxed) && pacer_.stop()) changed_.notify_all();
      const bool may_launch = runs_.empty() || runs_.back()->untaken.size() < max_untaken_;
      if (pacer_.look(may_launch)) {
        changed_.notify_all();
        continue;
      }
      const std::int64_t nap_ns = pacer_.nap_ns(may_launch);
      lock.unlock();
      device_->sleep(nap_ns);
      lock.lock();
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = error.what();
    changed_.notify_all();
  }
}

}  // namespace tercet::cuda
