"""A core that a recorder listens to, in the place of a core: what the loop does, for who drives a core by hand."""

from __future__ import annotations

import dataclasses
import io
import random
from typing import Any

from hasty import hasty_classes

from scheduler.actions import Action
from scheduler.core import Core
from scheduler.events import Event, TenantsChanged
from scheduler.plan_log.plan_file import PlanFile, read_plan_file
from scheduler.plan_log.recorder import NotedLookup, Recorder
from scheduler.plan_log.shape import LOOKUP
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import GREEDY, worker_info
from scheduler.simulator.text import VOCAB
from scheduler.simulator.worker import SimulatedWorker
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES

FOREVER = 1_000_000


class RecordedCore:
    """`tape` is the recorder."""

    def __init__(self, core: Core, max_rounds: int) -> None:
        self._core = core
        lookup = NotedLookup()
        setattr(core, LOOKUP, lookup)
        self.tape = Recorder(core, lookup, max_rounds)
        self._events: list[Event] = []
        self._actions: list[Action] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def apply(self, event: Event, now: float) -> list[Action]:
        actions = self._core.apply(event, now)
        self._events.append(event)
        self._actions += actions
        return actions

    def plan(self, now: float) -> list[Action]:
        actions = self._core.plan(now)
        self.tape.note(now, self._events, self._actions + actions)
        self._events, self._actions = [], []
        return actions


def record(mesh: VirtualMesh, max_rounds: int = FOREVER) -> Recorder:
    """Records what the mesh does from now on."""
    core = RecordedCore(mesh.core, max_rounds)
    mesh.core = core  # type: ignore[assignment]
    return core.tape


def dumped(tape: Recorder, now: float = 0.0) -> bytes:
    """The file as it is now."""
    return b"".join(tape.dump(now, written_at=1_800_000_000.0))


def reread(data: bytes) -> PlanFile:
    """The file as a replay takes it."""
    return read_plan_file(io.BytesIO(data))


def live(seed: int, max_rounds: int, requests: int = 25) -> tuple[VirtualMesh, Recorder]:
    """A mesh that has had a random life with everything in it, recorded."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4])
    info = worker_info(
        block_size=block_size,
        num_blocks=-(-rng.randint(48, 110) // block_size),
        max_num_seqs=rng.randint(3, 8),
        max_num_batched_tokens=rng.randint(8, 24),
        max_model_len=64,
        num_swap_blocks=rng.choice([0, 200]),
        swap_block_ns=1,
    )
    infos = [info] * rng.randint(1, 3)
    # Of their own numbers, so that a life is otherwise the same with tenants, and workers that hang, and without.
    whose, sleep = random.Random(seed), random.Random(seed + 1)
    classes = hasty_classes(whose) if seed % 2 else list(CLASSES.values())
    mesh = VirtualMesh(
        infos,
        num_steps=rng.choice([0, 0, 1, 4, 32]),
        seed=seed,
        delay=rng.choice([0.0, 0.002, 0.03]),
        wake=rng.choice([0.0, 0.01]),
        batching=rng.random() < 0.5,
        classes=[dataclasses.replace(each, max_queue_s=0.2, max_queued_requests=6) for each in classes],
    )
    tape = record(mesh, max_rounds)
    gateways = [mesh.attach_gateway(number) for number in (1, 2)]
    tenants = [""] if whose.random() < 0.4 else ["one", "two", "three"]
    if tenants != [""]:
        mesh.post(TenantsChanged(1, 1, (NamedPlan("one", kv_share=0.5), NamedPlan("two", tokens_per_minute=200))))
        mesh.at(0.3, lambda: gateways[1].lost or mesh.post(TenantsChanged(2, 2, (NamedPlan("one", max_concurrent=3),))))
    for index in range(len(infos)):
        mesh.attach_worker(index)
    shared = [rng.randrange(VOCAB) for _ in range(24)]

    def arrive(key: int) -> None:
        gateway = rng.choice(gateways)
        if gateway.lost:
            return
        prompt = shared[: rng.randrange(24)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.05:
            prompt[-1] = VOCAB + 1
        submitted = submission(
            key,
            prompt,
            rng.randrange(1, 28),
            stop_token_ids=(7,) if rng.random() < 0.3 else (),
            sampling=dataclasses.replace(
                GREEDY, seed=rng.randrange(3), grammar=b"any" * (key % 3 == 0), has_grammar=key % 3 == 0
            ),
            deadline_s=rng.random() * 0.5 if rng.random() < 0.1 else None,
            prefix_salt=rng.choice([b"", b"tenant"]),
            n=rng.choice([1, 1, 1, 2, 3]),
            priority=rng.choice([0, 0, 5]),
            traffic_class=rng.choice(["", "", "batch"]),
            tenant=whose.choice(tenants),
        )
        call = mesh.submit(gateway, submitted)
        if rng.random() < 0.2:
            mesh.at(mesh.now + rng.random() * 0.3, lambda: gateway.lost or mesh.cancel(gateway, call))
        if rng.random() < 0.2:
            mesh.at(mesh.now + rng.random() * 0.3, lambda: gateway.lost or mesh.stop(gateway, call))

    def crash() -> None:
        if mesh.workers:
            mesh.lose_worker(rng.choice(list(mesh.workers.values())))
            mesh.at(mesh.now + rng.random(), lambda: mesh.attach_worker(0))

    def doze() -> None:
        if mesh.workers:
            worker = sleep.choice(list(mesh.workers.values()))
            mesh.hang_worker(worker)
            mesh.at(mesh.now + sleep.choice([3.0, 30.0, 200.0]), lambda: wake(worker))

    def wake(worker: SimulatedWorker) -> None:
        # What it would still say on a stream that was ended nobody records.
        if worker.link in mesh.workers:
            mesh.wake_worker(worker)
        else:
            mesh.attach_worker(0)

    for key in range(requests):
        mesh.at(rng.random() * rng.choice([0.1, 1.0]), lambda key=key: arrive(key))
    for _ in range(rng.choice([0, 0, 1, 2])):
        mesh.at(rng.random(), crash)
    if rng.random() < 0.3:
        mesh.at(rng.random(), lambda: mesh.workers and mesh.drain_worker(next(iter(mesh.workers.values())), 0.5))
    if rng.random() < 0.2:
        mesh.at(rng.random(), lambda: mesh.lose_gateway(gateways[1]))
    if sleep.random() < 0.3:
        mesh.at(sleep.random(), doze)
    mesh.run()
    return mesh, tape
