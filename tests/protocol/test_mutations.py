"""Faults that the exploration finds: each is a line that somebody could have left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import scheduler.core
from gateway.sent_request import SentRequest
from gateway.sent_requests import SentRequests
from gateway.stream import Stream
from scheduler import ending, membership, pausing, reports
from scheduler.actions import CancelDone, NewSequence, Release, Rest, ToWorker
from scheduler.core import Core
from scheduler.credits import CreditLedger
from scheduler.events import BlockCounts
from scheduler.lifecycle import State
from scheduler.sequence import Sequence
from scheduler.simulator.worker import SimulatedWorker
from scheduler.window import PlanWindow
from tercet.mesh.v1 import scheduler_pb2

from .explorer import ViolationError, explore
from .gateway_world import GatewayWorld, break_wire
from .process import Process
from .stories import GATEWAY_STORIES, STORIES
from .wired_link import WiredLink
from .worker_world import WorkerWorld

MAX_STATES = 2_000

Mutation = Callable[[pytest.MonkeyPatch], None]


def _after(patch: pytest.MonkeyPatch, owner: Any, name: str, then: Callable[..., Any]) -> None:
    """Calls `then` with the arguments of each call of a function, behind it."""
    whole = getattr(owner, name)

    def mutant(*arguments: Any, **named: Any) -> Any:
        result = whole(*arguments, **named)
        then(*arguments, **named)
        return result

    patch.setattr(owner, name, mutant)


def a_release_is_not_answered(patch: pytest.MonkeyPatch) -> None:
    read = SimulatedWorker._read

    def mutant(self: SimulatedWorker, command: Any, events: list[Any]) -> None:
        read(self, command, [] if isinstance(command, Release) else events)

    patch.setattr(SimulatedWorker, "_read", mutant)


def a_release_is_not_sent(patch: pytest.MonkeyPatch) -> None:
    def drop(mesh: Any, *_: Any) -> None:
        mesh.actions = [
            each for each in mesh.actions if not (isinstance(each, ToWorker) and isinstance(each.command, Release))
        ]

    _after(patch, scheduler.core, "cancel", drop)


def a_worker_keeps_what_the_last_stream_owned(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Process) -> None:
        self._worker = self.wire = None

    patch.setattr(Process, "forget", forget)


def a_new_stream_is_taken_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    def reporter(mesh: Any, link: int) -> Any:
        workers = mesh.fleet.workers
        return workers.get(link) or next(iter(workers.values()), None)

    patch.setattr(reports, "_reporter", reporter)


def what_one_says_that_was_given_up_is_believed(patch: pytest.MonkeyPatch) -> None:
    a_new_stream_is_taken_for_the_old_one(patch)


def nobody_looks_whether_workers_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler.core, "give_up_hung", lambda *_: None)


def a_token_is_lost_with_its_worker(patch: pytest.MonkeyPatch) -> None:
    def lose(self: Sequence) -> None:
        if self.generated:
            self.token_ids.pop()

    _after(patch, Sequence, "requeue", lose)


def what_was_cancelled_is_not_looked_at_when_a_worker_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "finish_cancelled", lambda *_: None)


def a_cancel_is_answered_twice(patch: pytest.MonkeyPatch) -> None:
    def again(mesh: Any, request: Any, _now: float) -> None:
        mesh.send(request.gateway, CancelDone(request.submission.request_key))

    _after(patch, ending, "_end_request", again)


def a_gateway_that_is_gone_cancels_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler.core, "cancel", lambda *_: None)


def blocks_in_use_are_promised(patch: pytest.MonkeyPatch) -> None:
    report = CreditLedger.report

    def mutant(self: CreditLedger, counts: BlockCounts) -> None:
        report(self, BlockCounts(counts.free + counts.used, counts.cached, 0))

    patch.setattr(CreditLedger, "report", mutant)


def a_sequence_is_sent_twice(patch: pytest.MonkeyPatch) -> None:
    act = WorkerWorld._act

    def mutant(self: WorkerWorld, action: Any) -> None:
        act(self, action)
        if isinstance(action, ToWorker) and isinstance(action.command, NewSequence):
            act(self, action)

    patch.setattr(WorkerWorld, "_act", mutant)


def a_rest_is_not_answered(patch: pytest.MonkeyPatch) -> None:
    read = SimulatedWorker._read

    def mutant(self: SimulatedWorker, command: Any, events: list[Any]) -> None:
        read(self, command, [] if isinstance(command, Rest) else events)

    patch.setattr(SimulatedWorker, "_read", mutant)


def who_rests_is_off_the_books_at_once(patch: pytest.MonkeyPatch) -> None:
    pause = pausing.pause

    def mutant(mesh: Any, request: Any, now: float) -> None:
        pause(mesh, request, now)
        for each in request.sequences:
            if each.state is State.PAUSED and each.link is not None:
                pausing.rest(mesh, mesh.fleet.workers[each.link], each, found=True, now=now)

    patch.setattr(pausing, "pause", mutant)


def who_has_caught_up_meanwhile_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    unpause = pausing.unpause

    def mutant(mesh: Any, request: Any, now: float) -> None:
        if all(each.link is None for each in request.sequences):
            unpause(mesh, request, now)

    patch.setattr(pausing, "unpause", mutant)


def a_step_that_comes_twice_counts_twice(patch: pytest.MonkeyPatch) -> None:
    step = PlanWindow.step

    def mutant(self: PlanWindow, plan_seq: int, number: int) -> bool:
        return step(self, plan_seq, number) or any(plan.plan_seq == plan_seq for plan in self._plans)

    patch.setattr(PlanWindow, "step", mutant)


WORKER_MUTATIONS: dict[Mutation, str] = {
    a_rest_is_not_answered: "a reader falls behind",
    who_rests_is_off_the_books_at_once: "a reader falls behind",
    who_has_caught_up_meanwhile_is_forgotten: "a reader falls behind",
    a_release_is_not_answered: "a cancel at any moment",
    a_release_is_not_sent: "a cancel at any moment",
    a_worker_keeps_what_the_last_stream_owned: "it breaks again",
    a_new_stream_is_taken_for_the_old_one: "a stream breaks, and its last words come late",
    what_one_says_that_was_given_up_is_believed: "a worker hangs, is given up and comes back",
    nobody_looks_whether_workers_move: "both hang",
    a_token_is_lost_with_its_worker: "a worker dies twice",
    what_was_cancelled_is_not_looked_at_when_a_worker_is_lost: "a stream breaks, and its last words come late",
    a_cancel_is_answered_twice: "a cancel at any moment",
    a_gateway_that_is_gone_cancels_nothing: "the gateway goes",
    blocks_in_use_are_promised: "there is not room for both",
    a_sequence_is_sent_twice: "two requests",
    a_step_that_comes_twice_counts_twice: "a message comes twice",
}


def a_request_outlives_its_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SentRequests, "lose", lambda *_: None)


def a_stream_is_not_told_that_it_is_lost(patch: pytest.MonkeyPatch) -> None:
    fail = Stream.fail

    def mutant(self: Stream, error: Any) -> None:
        if error.reason != "SCHEDULER_LOST":
            fail(self, error)

    patch.setattr(Stream, "fail", mutant)


def what_was_not_sent_is_sent_on_the_next_stream(patch: pytest.MonkeyPatch) -> None:
    def lose(self: WiredLink) -> None:
        self._lose()

    patch.setattr(WiredLink, "lose", lose)


def a_cancel_is_forgotten_before_its_answer(patch: pytest.MonkeyPatch) -> None:
    def forget(self: SentRequests, key: int, _origin: Any) -> None:
        self._by_key.pop(key, None)
        self._send(scheduler_pb2.GatewayMessage())

    patch.setattr(SentRequests, "cancel", forget)


def a_scheduler_ends_its_streams_itself(patch: pytest.MonkeyPatch) -> None:
    """With gRPC, whoever then writes to such a stream hears nothing more of what was on its way."""
    carry = GatewayWorld._carry

    def part(self: GatewayWorld, number: int) -> None:
        for wire in self._known_wires():
            if wire.number == number:
                wire.parted = True

    def mutant(self: GatewayWorld) -> None:
        wire = self.wire
        if wire is not None and wire.parted and (self.link.num_unsent or not wire.up):
            break_wire(wire)
        carry(self)

    patch.setattr(GatewayWorld, "_part", part)
    patch.setattr(GatewayWorld, "_carry", mutant)


def who_reads_on_is_not_told_of(patch: pytest.MonkeyPatch) -> None:
    tell = SentRequests._tell_reader

    # By this name a copy of the world finds it.
    def _tell_reader(self: SentRequests, key: int) -> None:
        request = self._by_key.get(key)
        if request is not None and request.stream.behind:
            tell(self, key)

    patch.setattr(SentRequests, "_tell_reader", _tell_reader)


def the_next_one_is_told_of_a_token_less(patch: pytest.MonkeyPatch) -> None:
    take_over = SentRequests.take_over

    def mutant(self: SentRequests, request: SentRequest) -> None:
        for output in request.outputs:
            del output.token_ids[-1:]
        take_over(self, request)

    patch.setattr(SentRequests, "take_over", mutant)


def who_is_handed_over_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SentRequests, "take_over", lambda *_: None)


def nobody_cancels_what_the_gateway_does_not_name(patch: pytest.MonkeyPatch) -> None:
    compare = Core.compare
    patch.setattr(Core, "compare", lambda *arguments: ([], compare(*arguments)[1]))


def nobody_is_told_what_is_not_known(patch: pytest.MonkeyPatch) -> None:
    compare = Core.compare
    patch.setattr(Core, "compare", lambda *arguments: (compare(*arguments)[0], []))


def a_cancel_is_not_sent_again(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SentRequests, unknown: Any) -> None:
        keys = [key for key in unknown.request_keys if key in self._by_key and self._by_key[key].cancel_origin is None]
        take(self, scheduler_pb2.UnknownRequests(request_keys=keys))

    take = SentRequests.take_unknown
    patch.setattr(SentRequests, "take_unknown", mutant)


def a_comparison_passes_what_was_said_before(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: GatewayWorld) -> None:
        self.left["compares"] -= 1
        self._reconcile(self._wire, set(self.link._requests.keys()))

    patch.setattr(GatewayWorld, "_compare", mutant)


GATEWAY_MUTATIONS: dict[Mutation, str] = {
    nobody_cancels_what_the_gateway_does_not_name: "the gateway forgets a request",
    nobody_is_told_what_is_not_known: "a message is lost",
    a_cancel_is_not_sent_again: "one is lost, and a client leaves",
    a_comparison_passes_what_was_said_before: "both compare what runs",
    the_next_one_is_told_of_a_token_less: "the next one takes over",
    who_is_handed_over_is_forgotten: "the next one takes over",
    who_reads_on_is_not_told_of: "a client reads now and then",
    a_request_outlives_its_stream: "two requests on a stream that breaks",
    a_stream_is_not_told_that_it_is_lost: "two requests on a stream that breaks",
    what_was_not_sent_is_sent_on_the_next_stream: "two requests on a stream that breaks",
    a_scheduler_ends_its_streams_itself: "the scheduler is told to stop",
    a_cancel_is_forgotten_before_its_answer: "a client leaves at any moment",
}


@pytest.mark.parametrize("mutation", WORKER_MUTATIONS)
def test_it_finds(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(ViolationError) as caught:
        explore(WorkerWorld(STORIES[WORKER_MUTATIONS[mutation]]), MAX_STATES)
    assert caught.value.path


@pytest.mark.parametrize("mutation", GATEWAY_MUTATIONS)
def test_it_finds_at_the_gateway(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(ViolationError) as caught:
        explore(GatewayWorld(GATEWAY_STORIES[GATEWAY_MUTATIONS[mutation]]), MAX_STATES)
    assert caught.value.path
