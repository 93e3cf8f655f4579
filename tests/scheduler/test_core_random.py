"""The core in virtual time under everything that can happen at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hasty import PARTIAL, TENANTS, hasty_classes, unequal_tenants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import judge, prepared, refusals_for, settle

from scheduler.actions import Action, Refused, ToGateway
from scheduler.admission import AdmissionMode
from scheduler.core import Core
from scheduler.events import EndReason, Event, Submitted, TenantsChanged
from scheduler.plan_log.checkpoint import Snapshot
from scheduler.sequence import MAX_LOSSES
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import WORKER_GRACE_S, VirtualMesh
from scheduler.simulator.small import GREEDY, submission, worker_info
from scheduler.simulator.text import VOCAB
from scheduler.simulator.worker import Habits
from scheduler.traffic_class import CLASSES


class WatchedCore(Core):
    """Sees to it that what is refused leaves no trace."""

    def apply(self, event: Event, now: float) -> list[Action]:
        before = self._trace() if isinstance(event, Submitted) else None
        actions = super().apply(event, now)
        if any(isinstance(action, ToGateway) and isinstance(action.message, Refused) for action in actions):
            assert self._trace() == before
        return actions

    def _trace(self) -> list[Any]:
        """All that an accepted request changes, but for what it says in the log."""
        mesh = self._mesh
        return [
            self._mesh.next_id,
            list(mesh.sequences),
            [list(requests) for requests in mesh.gateways.values()],
            list(mesh.dirty),
            [len(each.heap) for each in (mesh.deadlines, mesh.ages, mesh.promises)],
            [list(Snapshot(pool.waiting).encoded()) for pool in mesh.fleet.pools.values()],
            list(Snapshot(mesh.tenants).encoded()),
            [
                list(Snapshot(what).encoded())
                for each in mesh.foresights.values()
                for what in (each.inflows, each.tenant_inflows, each.spare, each.learned_at)
                if what
            ],
        ]


class Story:
    """Random moves of one mesh: arrivals, stops, cancels, workers that drain or crash."""

    def __init__(
        self, mesh: VirtualMesh, num_gateways: int, most_outputs: int, *, plain: bool, tenants: Sequence[str] = ("",)
    ) -> None:
        self.mesh = mesh
        self.rng = mesh.rng
        # Of its own numbers, so that a life is otherwise the same with tenants and without.
        self._whose = random.Random(mesh.rng.randrange(2**16))
        self._tenants = tenants
        self.gateways = [mesh.attach_gateway(number) for number in range(1, 1 + num_gateways)]
        self.calls: list[tuple[VirtualGateway, Call]] = []
        self._shared = [self.rng.randrange(VOCAB) for _ in range(24)]
        self._most_outputs = most_outputs
        self._plain = plain
        self.enforced = mesh.core._settings.admission_mode is AdmissionMode.ENFORCE
        self._draining: set[int] = set()
        # How long no worker took anything new, each time, and since when none does.
        self._deserted: list[float] = []
        self._deserted_at: float | None = None

    def arrive(self, key: int) -> None:
        rng, mesh = self.rng, self.mesh
        gateway = rng.choice(self.gateways)
        if gateway.lost:
            return
        prompt = self._shared[: rng.randrange(24)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        if self.enforced and rng.random() < 0.1:
            prompt.append(VOCAB)
        ranks: dict[str, Any] = {}
        if not self._plain:
            ranks = {"traffic_class": rng.choice(["", "rag", "batch"]), "priority": rng.choice([0, 0, -2, 3])}
        asked = submission(
            key,
            prompt,
            rng.randrange(1, 24),
            stop_token_ids=(7,) if rng.random() < 0.5 else (),
            sampling=replace(GREEDY, seed=rng.randrange(3)),
            deadline_s=rng.random() * 0.5 if rng.random() < (0.5 if self.enforced else 0.2) else None,
            prefix_salt=rng.choice([b"", b"tenant"]),
            n=rng.randint(1, self._most_outputs),
            tenant=self._whose.choice(self._tenants),
            **ranks,
        )
        call = mesh.submit(gateway, asked)
        self.calls.append((gateway, call))
        if rng.random() < 0.3:
            for _ in range(rng.choice([1, 1, 2])):
                mesh.at(mesh.now + rng.random() * 0.3, lambda: gateway.lost or mesh.cancel(gateway, call))
        if rng.random() < 0.3:
            index = rng.randrange(asked.n)
            mesh.at(mesh.now + rng.random() * 0.3, lambda: gateway.lost or mesh.stop(gateway, call, index))
        if rng.random() < 0.3:
            self._fall_behind(gateway, call)

    def _fall_behind(self, gateway: VirtualGateway, call: Call) -> None:
        """Its reader, once or several times. In the end it has caught up."""
        rng, mesh = self.rng, self.mesh
        moment = mesh.now
        for _ in range(rng.choice([1, 1, 3])):
            moment += rng.random() * rng.choice([0.02, 0.3])
            mesh.at(moment, lambda: gateway.lost or mesh.pause(gateway, call))
            moment += rng.random() * rng.choice([0.005, 0.1, 3.0])
            mesh.at(moment, lambda: gateway.lost or mesh.unpause(gateway, call))

    def crash(self) -> None:
        if self.mesh.workers:
            victim = self.rng.choice(list(self.mesh.workers.values()))
            self.mesh.lose_worker(victim)
            self._note_desertion()
            self._come_back(victim.link)

    def drain(self) -> None:
        if self.mesh.workers:
            worker = self.rng.choice(list(self.mesh.workers.values()))
            self._draining.add(worker.link)
            # It may be told more than once.
            self.mesh.drain_worker(worker, self.rng.choice([0.02, 0.3, 3.0]))
            self._note_desertion()
            self._come_back(worker.link)

    def judge(self) -> None:
        """Every call that somebody waits for."""
        self._note_desertion()
        longest = max(self._deserted, default=0.0)
        seen = Counter(log.event for log in self.mesh.logs)
        # One that is gone before its word of stopping has arrived has crashed, for all that the core knows.
        crashes = seen["worker_lost"] - seen["worker_draining"]
        # A hair less: some events reach the core a moment late.
        lost = longest >= WORKER_GRACE_S - 0.001 or crashes >= MAX_LOSSES
        for gateway, call in self.calls:
            if not gateway.lost:
                refusals = refusals_for(call.submission, self.mesh.infos[0])
                if call.submission.tenant == PARTIAL:
                    refusals |= {"KV_NEVER_FITS"}
                if max(call.submission.prompt_token_ids) >= VOCAB:
                    refusals |= {"INVALID_FIELD"}
                if self.enforced:
                    refusals |= {"SLO_UNREACHABLE"}
                    refusals |= {"DEADLINE_UNREACHABLE"} if call.submission.deadline_s else set()
                judge(
                    call,
                    failures={"WORKER_LOST", "NO_WORKER"} if lost else (),
                    refusals=refusals | {"NO_WORKER"} if self._deserted else refusals,
                )

    def _come_back(self, link: int) -> None:
        """The one that was on that stream, in its old place or, if it still runs there, as one more beside it."""
        index = (link - 1) % len(self.mesh.infos)
        if self.rng.random() < 0.8:
            delay = self.rng.random() * self.rng.choice([0.1, 8.0])
            self.mesh.at(self.mesh.now + delay, lambda: self._attach(index))

    def _attach(self, index: int) -> None:
        self.mesh.attach_worker(index)
        self._note_desertion()

    def _note_desertion(self) -> None:
        """For how long no worker takes anything new."""
        now = self.mesh.now
        if self._deserted_at is not None:
            self._deserted.append(now - self._deserted_at)
        live = self.mesh.workers.keys() - self._draining
        self._deserted_at = None if live else now if self._deserted_at is None else self._deserted_at


def random_story(rng: random.Random, *, hasty: bool = False) -> Story:
    """A mesh of tiny pools and all that will happen to it. `hasty`: tenants compete, and promises are at stake."""
    block_size = rng.choice([1, 2, 4, 8])
    info = worker_info(
        block_size=block_size,
        num_blocks=-(-rng.randint(24, rng.choice([50, 120])) // block_size),
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(1, 24),
        max_model_len=64,
        num_swap_blocks=rng.choice([0, 4, 100, 100]),
        # Cheap enough to be chosen, and too dear.
        swap_block_ns=rng.choice([1, 1, 10**9]),
    )
    infos = [info] * rng.randint(1, 2)
    mesh = VirtualMesh(
        infos,
        num_steps=rng.choice([0, 1, 2, 8, 32]),
        max_prefill_tokens=rng.choice([0, 1, 4]),
        seed=rng.randrange(2**16),
        # Without a cost of its own a token is computed again for nothing, and nobody is swapped.
        costs=[rng.choice([StepCost(0.01), StepCost(0.01, 1e-3), StepCost(0.002, 1e-3), StepCost(0.002, 1e-3)])]
        * len(infos),
        delay=rng.choice([0.0, 0.002, 0.03]),
        wake=rng.choice([0.0, 0.01]),
        batching=rng.random() < 0.5,
        caching=rng.random() < 0.5,
        habits=Habits(eager_revoke=rng.random() < 0.5, reserve_ahead=rng.random() < 0.5),
        admission_mode=rng.choice([AdmissionMode.OFF, AdmissionMode.OFF, AdmissionMode.ENFORCE]),
        classes=hasty_classes(rng) if hasty else tuple(CLASSES.values()),
    )
    mesh.core = WatchedCore(mesh.core._settings)
    tenants = TENANTS if hasty else ("",)
    story = Story(mesh, 2, rng.choice([1, 2, 4]), plain=not hasty and rng.random() < 0.5, tenants=tenants)
    if hasty:
        mesh.post(TenantsChanged(1, 1, unequal_tenants(rng)))
    for index in range(len(infos)):
        mesh.attach_worker(index)
    burst = rng.random() < 0.5
    # The first of a kind is let in whatever is forecast.
    for key in range(rng.randint(1, 75 if story.enforced else 25)):
        mesh.at(rng.random() * (0.02 if burst else 1.0), lambda key=key: story.arrive(key))  # type: ignore[misc]
    for move in (story.crash, story.drain):
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 5)):
                mesh.at(rng.random(), move)
    if rng.random() < 0.5:
        mesh.at(rng.random(), lambda: mesh.lose_gateway(story.gateways[1]))
    return story


def live(rng: random.Random, *, hasty: bool = False) -> VirtualMesh:
    """The books balance after every event, each request has one end, and each text is the one that it would be
    alone."""
    story = random_story(rng, hasty=hasty)
    mesh = story.mesh
    settle(mesh)
    story.judge()
    assert not any(requests for requests in mesh.core._mesh.gateways.values())
    assert not mesh.core._mesh.sequences
    view = mesh.core.view()
    assert view.requests_finished == sum(log.event == "request_finished" for log in mesh.logs)
    assert view.swaps <= view.preemptions
    return mesh


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_random_lives(rng: random.Random) -> None:
    """Several outputs, classes, host memory, lost and draining workers."""
    live(rng)


def test_random_lives_know_both_ways_of_giving_way() -> None:
    views = [live(random.Random(seed)).core.view() for seed in range(100)]
    assert sum(view.swaps > 0 for view in views) >= 6
    assert sum(view.preemptions > view.swaps for view in views) >= 10


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_random_lives_of_tenants_and_classes_that_compete(rng: random.Random) -> None:
    """Shares of blocks, limits of classes, promises that get room from others."""
    live(rng, hasty=True)


def test_those_lives_know_who_makes_room_who_falls_short_of_blocks_and_who_is_refused_for_a_forecast() -> None:
    causes, reasons = Counter[bool](), Counter[str]()
    for seed in range(100):
        mesh = live(random.Random(seed), hasty=True)
        causes.update({log.fields["made_room"] for log in mesh.logs if log.event == "preempted"})
        reasons.update(log.fields["reason"] for log in mesh.logs if log.event == "request_refused")
    assert min(causes[True], causes[False]) >= 10
    assert reasons["SLO_UNREACHABLE"] >= 10
    assert reasons["DEADLINE_UNREACHABLE"] >= 4


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_credits_hold_to_the_last_block(data: st.DataObject) -> None:
    """Slow messages, long plans, full pools, forks: revoked plans run on, and nobody may run out of blocks."""
    draw = data.draw
    block_size = draw(st.sampled_from([1, 1, 2, 4]))
    info = worker_info(
        block_size=block_size,
        num_blocks=-(-draw(st.integers(40, 70)) // block_size),
        num_swap_blocks=draw(st.sampled_from([0, 20])),
        swap_block_ns=1,
    )
    mesh, gateway = prepared(
        infos=[info],
        costs=[StepCost(0.01, draw(st.sampled_from([0.0, 1e-3])))],
        num_steps=draw(st.sampled_from([0, 4, 32])),
        seed=draw(st.integers(0, 2**16)),
        delay=draw(st.sampled_from([0.03, 0.1])),
        wake=draw(st.sampled_from([0.0, 0.05])),
        habits=Habits(eager_revoke=draw(st.booleans()), reserve_ahead=draw(st.booleans())),
        caching=draw(st.booleans()),
        admission_mode=AdmissionMode.OFF,
    )
    rng = mesh.rng
    most_outputs = draw(st.sampled_from([1, 3]))
    for key in range(draw(st.integers(2, 12))):
        length = rng.randrange(1, 20)
        prompt = [rng.randrange(3) for _ in range(length)]
        asked = submission(key, prompt, rng.randrange(1, 41 - length), n=rng.randint(1, most_outputs))
        mesh.at(rng.random() * 1.5, lambda asked=asked: mesh.submit(gateway, asked))
    settle(mesh)
    for call in gateway.calls.values():
        judge(call)
        assert all(output.ends[0].reason is EndReason.LENGTH for output in call.outputs)
