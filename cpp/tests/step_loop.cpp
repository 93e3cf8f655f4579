// The step loop under the thread sanitizer, on a GPU that is a clock: python cpp/build.py --sanitize.
//
// First the pacer by hand: when it launches, to the microsecond of a clock that only sleeping moves. Then the loop with
// its thread, whose runs are stopped, extended, left waiting and closed at any moment.
#include "step_loop.h"

#include <cstdio>
#include <random>

#include "fake_gpu.h"

namespace tercet::cuda {
namespace {

constexpr std::int64_t kLead = 100 * kMicrosecond;

template <typename Error, typename F>
void expect_throws(F&& f, const std::string& what) {
  try {
    f();
  } catch (const Error&) {
    return;
  }
  expect(false, what + " was not refused");
}

// What the loop's thread does, on the caller's; returns the first token of each step of `run` that came.
std::vector<int> drive(StepPacer& pacer, const std::shared_ptr<StepRun>& run, FakeGpu& gpu,
                       const std::function<bool()>& may_launch, const std::function<bool()>& stops) {
  while (!run->is_over()) {
    if (stops()) pacer.stop();
    const bool may = may_launch();
    if (!pacer.look(may) && !run->is_over()) gpu.sleep(pacer.nap_ns(may));
  }
  std::vector<int> tokens;
  for (; !run->untaken.empty(); run->untaken.pop_front()) {
    const std::vector<std::int32_t>& both = run->untaken.front().tokens;
    expect(both.size() == 2 && both[1] == both[0] + 1, "a record is not its step's");
    tokens.push_back(both[0]);
  }
  return tokens;
}

bool always() { return true; }
bool never() { return false; }

std::shared_ptr<StepGraph> graph() { return std::make_shared<StepGraph>(); }

void expect_in_order(const std::vector<int>& tokens, int first, std::size_t count) {
  expect(tokens.size() == count, std::to_string(tokens.size()) + " steps came, not " + std::to_string(count));
  for (std::size_t i = 0; i < count; ++i) expect(tokens[i] == first + static_cast<int>(i), "steps are out of order");
}

// From the third step on, when it is known how long they take, each is launched the lead before the one before ends,
// so that the GPU never waits; and the thread sleeps nearly all the time.
void launches_late(std::int64_t step_ns) {
  FakeGpu gpu;
  gpu.duration = [=](std::size_t) { return step_ns; };
  gpu.oversleeps_ns = 20 * kMicrosecond;
  StepPacer pacer(gpu, kLead);
  const auto run = pacer.begin(graph(), nullptr, 50, true);
  expect_in_order(drive(pacer, run, gpu, always, never), 0, 50);
  for (std::size_t s = 3; s < 50; ++s) {
    const std::int64_t lead = gpu.steps[s - 1].ends - gpu.steps[s].at;
    expect(gpu.steps[s].starts == gpu.steps[s - 1].ends, "the GPU waited before step " + std::to_string(s));
    expect(lead <= kLead + 10 * kMicrosecond, "step " + std::to_string(s) + " was launched too early");
  }
  const std::int64_t per_step = gpu.awake_ns / 50;
  expect(per_step < 60 * kMicrosecond, std::to_string(per_step / 1000) + " us awake in a step");
}

// Waking up later than the lead costs what is missing, not more with every step.
void wakes_up_later_than_the_lead() {
  FakeGpu gpu;
  gpu.oversleeps_ns = kLead + 50 * kMicrosecond;
  StepPacer pacer(gpu, kLead);
  const auto run = pacer.begin(graph(), nullptr, 50, true);
  expect_in_order(drive(pacer, run, gpu, always, never), 0, 50);
  const std::int64_t busy = 40 * kMillisecond, took = gpu.steps[49].ends - gpu.steps[9].ends;
  expect(took - busy < 40 * 60 * kMicrosecond, std::to_string((took - busy) / 40000) + " us waited for each launch");
}

// A graph that has run before is expected to take as long again.
void second_run_knows_its_steps() {
  FakeGpu gpu;
  StepPacer pacer(gpu, kLead);
  const std::shared_ptr<StepGraph> same = graph();
  for (const int first : {0, 5}) {
    const auto run = pacer.begin(same, nullptr, 5, true);
    expect_in_order(drive(pacer, run, gpu, always, never), first, 5);
    gpu.now += kSecond;
  }
  const std::int64_t lead = gpu.steps[5].ends - gpu.steps[6].at;
  expect(lead > kLead / 2 && lead < 2 * kLead, "the second step of a known graph was not launched ahead");
}

// The graph is the same, the contexts are not.
void is_soon_seen_if_it_was_expected_later() {
  FakeGpu gpu;
  gpu.duration = [](std::size_t step) { return step == 0 ? 40 * kMillisecond : 5 * kMillisecond; };
  StepPacer pacer(gpu, kLead);
  const std::shared_ptr<StepGraph> same = graph();
  for (const int first : {0, 1}) {
    const auto run = pacer.begin(same, nullptr, 1, true);
    expect_in_order(drive(pacer, run, gpu, always, never), first, 1);
  }
  expect(gpu.now - gpu.steps[1].ends < 250 * kMicrosecond, "a short step was seen late");
}

void any_durations(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  FakeGpu gpu;
  gpu.duration = [&](std::size_t) { return static_cast<std::int64_t>(random() % (3 * kMillisecond)) + 1; };
  gpu.oversleeps_ns = static_cast<std::int64_t>(random() % (100 * kMicrosecond));
  StepPacer pacer(gpu, static_cast<std::int64_t>(random() % (300 * kMicrosecond)));
  int first = 0;
  for (int time = 0; time < 20; ++time) {
    const int num_steps = 1 + static_cast<int>(random() % 40);
    const auto run = pacer.begin(graph(), nullptr, num_steps, true);
    expect_in_order(
        drive(pacer, run, gpu, [&] { return random() % 4 != 0; }, never), first, static_cast<std::size_t>(num_steps));
    first += num_steps;
  }
}

// Whenever it comes: nothing is launched after it, and what was launched still comes.
void stops_at_a_boundary(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  FakeGpu gpu;
  StepPacer pacer(gpu, kLead);
  const auto run = pacer.begin(graph(), nullptr, 1000, true);
  const std::int64_t stop_at = gpu.now + static_cast<std::int64_t>(random() % (20 * kMillisecond));
  std::size_t launched_before = 0;
  const auto stops = [&] {
    if (gpu.now < stop_at) launched_before = gpu.steps.size();
    return gpu.now >= stop_at;
  };
  const std::vector<int> tokens = drive(pacer, run, gpu, [&] { return gpu.now < stop_at; }, stops);
  expect_in_order(tokens, 0, gpu.steps.size());
  expect(gpu.steps.size() <= std::max<std::size_t>(launched_before + 1, 1), "a step was launched after the stop");
  const std::int64_t late = gpu.steps.back().ends - stop_at;
  expect(late <= kMillisecond + kLead + 20 * kMicrosecond, "a stop took more than a step and the lead");
}

// The step that was queued when the last row ended is nobody's, also if the next run begins before it is done.
void ends_with_the_last_row(bool at_once) {
  FakeGpu gpu;
  gpu.num_live = [](std::size_t step) { return step == 7 ? 0 : 2; };
  StepPacer pacer(gpu, kLead);
  const std::shared_ptr<StepGraph> same = graph();
  const auto run = pacer.begin(same, nullptr, 100, true);
  expect_in_order(drive(pacer, run, gpu, always, never), 0, 8);
  expect(gpu.steps.size() == 9 && pacer.num_on_their_way() == 1, "one step was to be on its way");
  pacer.extend(5);
  expect(run->is_over(), "a run was extended that no row was left of");
  if (!at_once) gpu.now += kSecond;
  const auto behind = pacer.begin(same, nullptr, 3, true);
  expect_in_order(drive(pacer, behind, gpu, always, never), 9, 3);
}

// A run that begins while another is on: the GPU goes from one to the other as from step to step, whenever that is.
void follows_another_run(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  FakeGpu gpu;
  StepPacer pacer(gpu, kLead);
  const auto first = pacer.begin(graph(), nullptr, 1000, true);
  const std::int64_t at = gpu.now + 3 * kMillisecond + static_cast<std::int64_t>(random() % (4 * kMillisecond));
  while (gpu.now < at) {
    if (!pacer.look(true)) gpu.sleep(std::min(pacer.nap_ns(true), at - gpu.now));
  }
  pacer.settle();
  const std::size_t before = gpu.steps.size();
  const auto second = pacer.begin(graph(), nullptr, 1, false);
  const std::vector<int> tokens = drive(pacer, second, gpu, always, [&] { return pacer.stop(); });
  expect(first->is_over(), "a run was over before the one that it follows");
  expect(first->untaken.size() == before, "a step is missing");
  expect_in_order(tokens, static_cast<int>(before), 1);
  expect(gpu.steps[before].starts - gpu.steps[before - 1].ends <= 20 * kMicrosecond, "the GPU waited between two runs");
}

void is_extended() {
  FakeGpu gpu;
  StepPacer pacer(gpu, kLead);
  const auto run = pacer.begin(graph(), nullptr, 4, true);
  bool extended = false;
  const auto extend = [&] {
    if (!extended && gpu.steps.size() == 4) {
      pacer.extend(3);
      extended = true;
    }
    return false;
  };
  expect_in_order(drive(pacer, run, gpu, always, extend), 0, 7);
  for (std::size_t s = 3; s < 7; ++s) expect(gpu.steps[s].starts == gpu.steps[s - 1].ends, "the GPU waited");
}

void a_device_that_fails_is_noticed() {
  const auto fails_after = [](const std::function<void(FakeGpu&)>& harm) {
    FakeGpu gpu;
    StepPacer pacer(gpu, kLead);
    const auto run = pacer.begin(graph(), nullptr, 10, true);
    harm(gpu);
    const std::int64_t began = gpu.now;
    expect_throws<std::runtime_error>([&] { drive(pacer, run, gpu, always, never); }, "a device that fails");
    return gpu.now - began;
  };
  const auto hang = [](std::size_t) { return 1000 * kSecond; };
  expect(fails_after([](FakeGpu& gpu) { gpu.broken = true; }) < kSecond, "an error was noticed late");
  expect(fails_after([](FakeGpu& gpu) { gpu.loses_records = true; }) < kSecond, "a lost record was noticed late");
  expect(fails_after([&](FakeGpu& gpu) { gpu.duration = hang; }) < 100 * kSecond, "a hang was not noticed");

  FakeGpu gpu;
  StepPacer pacer(gpu, kLead);
  gpu.launch({}, nullptr);  // by somebody else
  gpu.now += kSecond;
  expect_throws<std::runtime_error>([&] { pacer.begin(graph(), nullptr, 1, true); }, "a step of somebody else's");
}

// --- with the thread

struct Threaded {
  FakeGpu* gpu;
  StepLoop loop;

  explicit Threaded(std::unique_ptr<FakeGpu> made)
      : gpu(made.get()), loop(std::move(made), FakeGpu::kNumRecords, kLead) {}
  Threaded() : Threaded(std::make_unique<FakeGpu>()) {}
};

// Takes a run's steps to its end; returns how many there were.
int take_all(StepLoop& loop, int& next_token) {
  int num_steps = 0;
  while (const std::optional<Step> step = loop.next()) {
    expect(step->tokens[0] >= next_token, "a step came twice");
    expect(num_steps == 0 || step->tokens[0] == next_token, "a step is missing");
    next_token = step->tokens[0] + 1;
    ++num_steps;
  }
  return num_steps;
}

void runs_stop_and_go_on(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto gpu = std::make_unique<FakeGpu>();
  gpu->num_live = [](std::size_t step) { return step % 37 == 36 ? 0 : 2; };
  Threaded with(std::move(gpu));
  const std::shared_ptr<StepGraph> same = graph();
  std::atomic<bool> done{false};
  std::thread stopper([&] {
    for (std::mt19937_64 when(seed + 1); !done;) {
      std::this_thread::sleep_for(std::chrono::microseconds(when() % 300));
      with.loop.stop();
      with.loop.wake();
    }
  });
  int next_token = 0;
  for (int run = 0; run < 300; ++run) {
    const int num_steps = 1 + static_cast<int>(random() % 20);
    with.loop.run(same, nullptr, num_steps, true);
    const bool extended = random() % 2 == 0 && with.loop.extend(5);
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    while (!with.loop.wait()) {
    }
    const int taken = take_all(with.loop, next_token);
    expect(taken <= num_steps + (extended ? 5 : 0), std::to_string(taken) + " steps came");
    expect(!with.loop.next() && !with.loop.extend(1), "a run that was over went on");
  }
  done = true;
  stopper.join();
}

// Each has its own steps, and what was to come of the one before is known when the next one begins.
void runs_follow_runs(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Threaded with;
  const std::shared_ptr<StepGraph> graphs[] = {graph(), graph()};
  int next_token = 0;
  const auto take = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const std::optional<Step> step = with.loop.next();
      expect(step && step->tokens[0] == next_token++, "a step is missing");
    }
  };
  for (int time = 0; time < 200; ++time) {
    with.loop.run(graphs[0], nullptr, 1 << 20, true);
    expect_throws<std::logic_error>([&] { with.loop.run(graphs[0], nullptr, 1, true); },
                                    "a run before one that goes on");
    take(static_cast<int>(random() % 4));
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
    const int left = with.loop.settle();
    with.loop.run(graphs[1], nullptr, 1, false);
    with.loop.stop();
    take(left);
    expect(!with.loop.next(), "more steps came than were to come");
    expect(with.loop.settle() == 1, "a step that does not stop was not to come");
    with.loop.run(graphs[0], nullptr, 5, true);
    const int of_last = random() % 2 == 0 ? 5 : with.loop.settle();
    take(1);
    expect(!with.loop.next(), "a single step was two");
    take(of_last);
    expect(!with.loop.next() && !with.loop.next(), "the last run went on");
  }
}

// While steps are not taken, no more are launched than there is room for; nothing is lost.
void waits_for_the_taker() {
  Threaded with;
  with.loop.run(graph(), nullptr, 100, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  expect(with.gpu->num_launched <= FakeGpu::kNumRecords + 2, "steps were launched for which there is no room");
  int next_token = 0;
  expect(with.loop.next()->tokens[0] == next_token++, "the first step is another");
  expect(take_all(with.loop, next_token) == 99, "steps were lost");
}

void closes_in_the_middle(std::uint64_t seed) {
  Threaded with;
  with.loop.run(graph(), nullptr, 1000000, true);
  std::thread taker([&] {
    expect_throws<std::logic_error>(
        [&] {
          while (with.loop.next()) {
          }
          throw std::runtime_error("the run was over");
        },
        "taking from a closed loop");
  });
  std::this_thread::sleep_for(std::chrono::microseconds(seed * 100));
  with.loop.close();
  with.loop.close();
  taker.join();
  expect(with.gpu->num_unfinished() == 0, "the loop was closed before its steps were done");
  expect_throws<std::logic_error>([&] { with.loop.run(graph(), nullptr, 1, true); }, "a run after the close");
}

void a_failure_reaches_the_taker() {
  auto gpu = std::make_unique<FakeGpu>();
  gpu->duration = [it = gpu.get()](std::size_t step) {
    it->broken = step == 5;
    return step == 5 ? 1000 * kSecond : kMillisecond;
  };
  Threaded with(std::move(gpu));
  with.loop.run(graph(), nullptr, 10, true);
  for (int step = 0; step < 5; ++step) expect(with.loop.next()->tokens[0] == step, "a step before the failure is gone");
  for (int again = 0; again < 2; ++again) {
    expect_throws<std::runtime_error>([&] { with.loop.next(); }, "taking from a loop that failed");
    expect_throws<std::runtime_error>([&] { with.loop.run(graph(), nullptr, 1, true); }, "a run after the failure");
  }
}

void check_all() {
  for (const std::int64_t step_us : {200, 350, 1000, 4000, 30000}) launches_late(step_us * kMicrosecond);
  wakes_up_later_than_the_lead();
  second_run_knows_its_steps();
  is_soon_seen_if_it_was_expected_later();
  is_extended();
  a_device_that_fails_is_noticed();
  for (const bool at_once : {false, true}) ends_with_the_last_row(at_once);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    any_durations(seed);
    stops_at_a_boundary(seed);
    follows_another_run(seed);
  }
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    runs_stop_and_go_on(seed);
    runs_follow_runs(seed);
    closes_in_the_middle(seed);
  }
  waits_for_the_taker();
  a_failure_reaches_the_taker();
  expect_throws<std::invalid_argument>([] { Threaded().loop.run(graph(), nullptr, 0, true); }, "a run of no steps");
}

}  // namespace
}  // namespace tercet::cuda

int main() {
  try {
    tercet::cuda::check_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step loop: %s\n", error.what());
    return 1;
  }
  std::printf("step loop: no fault\n");
  return 0;
}
