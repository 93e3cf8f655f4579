"""What a step's report means for the books of its worker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import prepared

from scheduler.actions import ToGateway, TokenBatch
from scheduler.events import PrefillProgress, StepReported
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.step_time import StepTimes


class Listening(StepTimes):
    """Keeps the tokens and seconds of each step that it learns from."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[int, float]] = []

    def observe(self, num_tokens: int, context_tokens: int, seconds: float) -> None:
        self.heard.append((num_tokens, seconds))
        super().observe(num_tokens, context_tokens, seconds)


def observed(mesh: VirtualMesh) -> list[tuple[int, float]]:
    (worker,) = mesh.core._mesh.fleet.workers.values()
    worker.step_times = listening = Listening()
    return listening.heard


def test_a_step_computed_its_decodes_and_what_prefills_did_not_find_in_the_cache() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], num_steps=1)
    heard = observed(mesh)
    mesh.submit(gateway, submission(1, [3] * 22, 3))
    mesh.run()
    # A full step, the rest of the prompt with the first token, and two decodes.
    assert [tokens for tokens, _ in heard] == [16, 6, 1, 1]
    assert all(seconds == mesh.step_time for _, seconds in heard)
    heard.clear()
    mesh.submit(gateway, submission(2, [3] * 22, 3))
    mesh.run()
    # Five blocks of four were found.
    assert [tokens for tokens, _ in heard] == [2, 1, 1]


def test_the_first_tokens_of_a_group_cost_one_prefill() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], num_steps=1)
    heard = observed(mesh)
    mesh.submit(gateway, submission(1, [3] * 10, 3, n=3))
    mesh.run()
    assert [tokens for tokens, _ in heard] == [10, 3, 3]


def test_a_step_that_says_no_time_teaches_nothing() -> None:
    mesh, gateway = prepared(delay=0.0)
    heard = observed(mesh)
    mesh.submit(gateway, submission(1))
    mesh.run(until=0.005)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    counts = worker.ledger.counts
    report = StepReported(1, 1, 0, (1,), (7,), (PrefillProgress(1, 3, 0),), (), counts)
    mesh.core.handle(report, mesh.now)
    assert worker.steps == 1
    assert not heard


def test_who_leaves_ends_the_quiet() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)])
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 90)) for key in (1, 2)]
    mesh.run(until=0.4)
    (worker,) = mesh.core.workers
    assert worker.pace.quiet_steps > 20
    mesh.cancel(gateway, calls[0])
    while not calls[0].cancelled:
        mesh.run(until=mesh.now + 0.001)
    assert worker.pace.quiet_steps <= 1


def test_what_a_preempted_sequence_finds_of_its_own_is_no_saving() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=12)])
    calls = [mesh.submit(gateway, submission(key, [key] * 10, 30)) for key in (1, 2)]
    found: list[int] = []
    while not mesh.core.idle:
        mesh.run(until=mesh.now + 0.001)
        found += [each.cached for worker in mesh.workers.values() for each in worker.sequences.values()]
    assert mesh.core.view().preemptions
    assert max(found) > 0
    assert [call.ends[0].account.cached_tokens for call in calls] == [0, 0]


def test_logprobs_go_with_their_tokens_and_no_others() -> None:
    mesh, gateway = prepared(delay=0.0)
    mesh.submit(gateway, submission(1))
    mesh.run(until=0.005)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    counts = worker.ledger.counts
    report = StepReported(
        1, 1, 0, (1, 44), (7, 8), (PrefillProgress(1, 3, 0),), (), counts, logprobs=((1, b"one"), (44, b"unknown"))
    )
    (batch,) = [
        action.message
        for action in mesh.core.handle(report, mesh.now)
        if isinstance(action, ToGateway) and isinstance(action.message, TokenBatch)
    ]
    assert (batch.token_ids, batch.logprobs) == ((7,), ((1, b"one"),))


def test_news_of_a_worker_that_is_gone_and_of_sequences_it_has_not_changes_nothing() -> None:
    mesh, gateway = prepared(delay=0.0)
    call = mesh.submit(gateway, submission(1))
    mesh.run(until=0.005)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    counts = worker.ledger.counts
    assert mesh.core.handle(StepReported(99, 1, 0, (1,), (7,), (), (), counts), mesh.now) == []
    progress = (PrefillProgress(44, 3, 0),)
    mesh.core.handle(StepReported(1, 1, 0, (44,), (7,), progress, (), counts), mesh.now)
    assert mesh.core.check() == []
    assert not call.tokens


def spent_us(mesh: VirtualMesh) -> float:
    """What the requests that have ended were told of the device's time, in microseconds."""
    return sum(log.fields["gpu_ms"] * 1e3 for log in mesh.logs if log.event == "request_finished")


def test_the_time_of_a_step_belongs_to_what_it_computed() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], num_steps=1)
    step_us = mesh.step_time * 1e6
    one = mesh.submit(gateway, submission(1, [3] * 22, 3))
    mesh.run()
    # 16 tokens, 6 tokens, and two decodes, each alone in its step.
    (end,) = one.ends
    assert (end.account.generated_tokens, end.account.gpu_us) == (3, 4 * step_us)
    # A prefill of 10 tokens with a first token of each of three, then two steps of three.
    several = mesh.submit(gateway, submission(2, [5] * 10, 3, n=3))
    mesh.run()
    accounts = [output.ends[0].account for output in several.outputs]
    assert [each.generated_tokens for each in accounts] == [3, 3, 3]
    # Each rounded; the prompt is the first one's work.
    assert [round(each.gpu_us / step_us, 4) for each in accounts] == [1.6667, 0.6667, 0.6667]


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.floats(0.0, 0.2), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_no_time_is_lost_and_none_is_charged_twice(asks: list[tuple[int, int, int, float, bool]]) -> None:
    """What requests are told they cost is what the steps took, but for the steps whose tokens came after an end."""
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], num_steps=4)
    heard = observed(mesh)
    cancelled = False
    for key, (prompt, length, n, at, cancel) in enumerate(sorted(asks, key=lambda ask: ask[3]), 1):
        mesh.run(until=max(mesh.now, at))
        call = mesh.submit(gateway, submission(key, [key] * prompt, length, n=n))
        if cancel:
            cancelled = True
            mesh.run(until=mesh.now + 0.015)
            mesh.cancel(gateway, call)
    mesh.run()
    took_us = sum(seconds for _, seconds in heard) * 1e6
    spent = spent_us(mesh)
    # Rounded to a microsecond for each request.
    assert spent <= took_us + len(asks)
    if not cancelled:
        assert spent >= took_us - len(asks)
