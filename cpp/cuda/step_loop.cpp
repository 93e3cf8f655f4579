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

void StepLoop::run(std::shared_ptr<StepGraph> graph, Stream stream, int num_steps) {
  if (num_steps < 1) throw std::invalid_argument("a run has at least one step, not " + std::to_string(num_steps));
  const std::lock_guard lock(mutex_);
  check_usable();
  if (running_ || !untaken_.empty()) throw std::logic_error("the run before is not over");
  stopped_.store(false, std::memory_order_relaxed);
  num_added_ = 0;
  // Here and not in the thread, whose waking would take longer than all the rest.
  pacer_.begin(std::move(graph), stream, num_steps);
  running_ = true;
  changed_.notify_all();
}

bool StepLoop::extend(int num_steps) {
  const std::lock_guard lock(mutex_);
  if (!running_ || closed_ || stopped_.load(std::memory_order_relaxed)) return false;
  num_added_ += num_steps;
  return true;
}

std::optional<Step> StepLoop::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !running_ || !untaken_.empty(); });
  if (closed_ || untaken_.empty()) {
    check_usable();
    return std::nullopt;
  }
  Step step = std::move(untaken_.front());
  untaken_.pop_front();
  return step;
}

void StepLoop::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    stop();
    changed_.notify_all();
  }
  std::call_once(joined_, [this] { thread_.join(); });
}

void StepLoop::work() {
  std::unique_lock lock(mutex_);
  try {
    device_->begin_thread();
    for (;;) {
      changed_.wait(lock, [this] { return running_ || closed_; });
      // After a close as well: what was launched uses memory that goes with the device.
      if (!running_ && pacer_.num_on_their_way() == 0) return;
      look(lock);
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = error.what();
    running_ = false;
    changed_.notify_all();
  }
}

void StepLoop::look(std::unique_lock<std::mutex>& lock) {
  const bool may_launch = untaken_.size() < max_untaken_ && !stopped_.load(std::memory_order_relaxed);
  lock.unlock();
  std::optional<Step> step = pacer_.look(may_launch);
  lock.lock();
  const bool was_running = running_, has_step = step.has_value();
  if (has_step) untaken_.push_back(*std::move(step));
  pacer_.extend(std::exchange(num_added_, 0));
  if (stopped_.load(std::memory_order_relaxed)) pacer_.stop();
  running_ = running_ && !pacer_.is_over();
  const bool news = has_step || running_ != was_running;
  const std::int64_t nap_ns = news ? 0 : pacer_.nap_ns(may_launch);
  lock.unlock();
  // After the run's end the device is no longer the thread's.
  if (news) {
    changed_.notify_all();
  } else {
    device_->sleep(nap_ns);
  }
  lock.lock();
}

}  // namespace tercet::cuda
