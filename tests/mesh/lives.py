"""One random life of a mesh: what is asked of it and what befalls it, as plain values; and the verdict on it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from gateway.mesh_messages import to_prompt_part
from gateway.prompt_logprobs import PromptLogprobs
from scheduler.admission import AdmissionMode
from scheduler.events import EndReason, Sampling, TenantsChanged
from scheduler.sequence import MAX_LOSSES
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import WORKER_GRACE_S
from scheduler.simulator.small import submission
from scheduler.traffic_class import CLASSES, TrafficClass
from tercet.mesh.v1.sequence_pb2 import PromptLogprobs as PromptLogprobsProto
from tests.mesh.alone import Lone, prompt_logprobs_alone, run_alone
from tests.mesh.models import model_of
from tests.mesh.penalties import draw_penalties, penalties_to_bytes
from tests.mesh.real_mesh import RealMesh
from tests.mesh.real_worker import Setup
from tests.mesh.structures import draw_structure, structure_to_bytes
from tests.scheduler.hasty import PARTIAL, TENANTS, hasty_classes, unequal_tenants
from tests.scheduler.outcomes import refusals_for
from tests.worker.grammar_process import END
from tests.worker.recall_model import VOCAB_SIZE
from worker.messages import EndReason as WorkerEndReason
from worker.messages import Penalties, Structure
from worker.messages import Sampling as WorkerSampling

_REASONS = {WorkerEndReason.STOP: EndReason.STOP, WorkerEndReason.LENGTH: EndReason.LENGTH}
# How long a worker that is told to stop lets run what cannot move, in seconds.
_GRACE_S = 0.5
# Blows after which the scheduler cannot know whether a request is what brought the worker down.
_LOSSES = ("reconnect", "crash")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. Times are in seconds: `at` from the start, the others from there. `stops`: (output, when); `stalls`:
    (when its reader falls behind, when it has caught up)."""

    at: float
    gateway: int
    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    penalties: Penalties | None
    structure: Structure | None
    salt: bytes
    deadline_s: float | None
    traffic_class: str
    tenant: str
    priority: int
    cancels: tuple[float, ...]
    stops: tuple[tuple[int, float], ...]
    stalls: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Blow:
    """Something that befalls a worker, or the second gateway."""

    at: float
    kind: str
    worker: int
    pause: float
    steps_alone: int
    detach: bool


@dataclass(frozen=True, slots=True)
class Life:
    """A mesh of one or two workers and two gateways, and its story."""

    seed: int
    workers: tuple[Setup, ...]
    num_steps: int
    max_prefill_tokens: int
    delay: float
    wake: float
    batching: bool
    classes: tuple[TrafficClass, ...]
    asks: tuple[Ask, ...]
    blows: tuple[Blow, ...]

    def __str__(self) -> str:
        lines = [repr(replace(self, asks=(), blows=())), *map(repr, self.asks), *map(repr, self.blows)]
        return "\n".join(lines)


def random_life(rng: random.Random, model: str) -> Life:
    """Small pools, many coincidences."""
    # Short prompts and long texts: sequences start side by side, and then there is not room for all.
    crowded = rng.random() < 0.5
    num_tokens = rng.randint(30, 60) if crowded else rng.randint(40, 160)
    block_size = rng.choice([1, 2, 3, 4, 8, 16])
    setup = Setup(
        model,
        block_size,
        max(3, -(-num_tokens // block_size)),
        max_num_seqs=rng.choice([3, 4, 6]) if crowded else rng.choice([1, 2, 3, 4, 6]),
        max_num_batched_tokens=rng.choice([6, 8, 16, 32]) if crowded else rng.choice([1, 3, 5, 16]),
        caching=rng.random() < 0.8,
        num_swap_blocks=-(-rng.choice([0, 8, 40, 160]) // block_size),
        swap_block_ns=rng.choice([1, 1, 10_000_000]),
        step_s=rng.choice([0.001, 0.01, 0.03]),
        # The others' kernels take no padding on a CPU.
        captured=model == "hash" and rng.random() < 0.5,
    )
    workers = [setup]
    if rng.random() < 0.3:
        block_size = rng.choice([1, 2, 4, 16])
        other = replace(setup, block_size=block_size, num_blocks=max(3, -(-num_tokens // block_size)))
        workers.append(replace(other, step_s=rng.choice([0.001, 0.01, 0.03])))
    vocab_size = model_of(model).config.vocab_size
    prefixes = [tuple(rng.randrange(vocab_size) for _ in range(24)) for _ in range(2)]
    spread = rng.choice([0.02, 0.2, 0.8])
    return Life(
        seed=rng.randrange(2**16),
        workers=tuple(workers),
        num_steps=rng.choice([0, 0, 1, 2, rng.randint(3, 32)]),
        max_prefill_tokens=rng.choice([0, 0, 1, 4]),
        delay=rng.choice([0.0, 0.002, 0.03]),
        wake=rng.choice([0.0, 0.01]),
        batching=rng.random() < 0.5,
        classes=tuple(hasty_classes(rng)) if rng.random() < 0.5 else tuple(CLASSES.values()),
        asks=tuple(_random_ask(rng, vocab_size, prefixes, spread, crowded=crowded) for _ in range(rng.randint(1, 12))),
        blows=tuple(_random_blow(rng, len(workers)) for _ in range(rng.choice([0, 0, 1, 2, 4]))),
    )


def _random_ask(
    rng: random.Random, vocab_size: int, prefixes: list[tuple[int, ...]], spread: float, *, crowded: bool
) -> Ask:
    # Not a draw per token: what they are matters little, that they differ does.
    words = random.Random(rng.randrange(2**16))
    prefix = rng.choice(prefixes)[: rng.choice([0, 0, 4, 8] if crowded else [0, 8, 16, 24])]
    tail = tuple(words.randrange(vocab_size) for _ in range(rng.randint(1, 4 if crowded else 12)))
    n = rng.choice([1, 1, 2, 3])
    max_tokens = rng.randint(8, 26) if crowded else rng.randint(1, 24)
    penalties = draw_penalties(words, prefix + tail, max_tokens, vocab_size) if words.random() < 0.3 else None
    ask = Ask(
        at=rng.random() * spread,
        gateway=rng.randint(1, 2),
        prompt=prefix + tail,
        max_tokens=max_tokens,
        n=n,
        stop_token_ids=tuple(rng.randrange(vocab_size) for _ in range(rng.choice([0, 0, 1, 2, 4]))),
        sampling=Sampling(
            temperature=rng.choice([0.0, 0.5, 1.0, 1.5]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 0, 5]),
            min_p=rng.choice([0.0, 0.05]),
            seed=rng.choice([0, 1, 7, 2**64 - 2]),
            penalties=b"" if penalties is None else penalties_to_bytes(penalties),
            num_logprobs=words.choice([None, None, None, 0, 3]),
            num_prompt_logprobs=words.choice([None, None, None, 0, 3]),
        ),
        penalties=penalties,
        structure=None,
        salt=rng.choice([b"", b"", b"tenant"]),
        deadline_s=rng.choice([None] * 15 + [0.1, 0.3]),
        traffic_class=rng.choice(["", "rag", "batch"]),
        tenant=rng.choice(TENANTS),
        priority=rng.choice([0, 0, -3, 3]),
        cancels=tuple(rng.random() * 0.4 for _ in range(rng.choice([0] * 7 + [1, 2]))),
        stops=tuple((rng.randrange(n), rng.random() * 0.4) for _ in range(rng.choice([0] * 7 + [1, 2]))),
        stalls=tuple(_random_stalls(words)),
    )
    if vocab_size != VOCAB_SIZE or penalties is not None or words.random() < 0.75:
        return ask
    structure = draw_structure(words, ask.prompt)
    sampling = replace(ask.sampling, grammar=structure_to_bytes(structure))
    return replace(ask, structure=structure, sampling=sampling, stop_token_ids=(*ask.stop_token_ids, END))


def _random_stalls(rng: random.Random) -> Iterator[tuple[float, float]]:
    moment = 0.0
    for _ in range(rng.choice([0] * 4 + [1, 1, 3])):
        begin = moment + rng.random() * rng.choice([0.02, 0.3])
        moment = begin + rng.random() * rng.choice([0.005, 0.1, 1.0])
        yield begin, moment


def _random_blow(rng: random.Random, num_workers: int) -> Blow:
    return Blow(
        at=rng.choice([0.03, 0.1, 0.3, 0.6]) * (0.5 + rng.random()),
        kind=rng.choice(["reconnect", "reconnect", "crash", "drain", "gateway"]),
        worker=rng.randrange(num_workers),
        pause=rng.choice([0.001, 0.05, 0.3]),
        steps_alone=rng.randint(0, 4),
        detach=rng.random() < 0.5,
    )


class Player:
    """Lives a life. Raises AssertionError as soon as something does not hold."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.mesh = RealMesh(
            life.workers,
            num_steps=life.num_steps,
            max_prefill_tokens=life.max_prefill_tokens,
            seed=life.seed,
            delay=life.delay,
            wake=life.wake,
            batching=life.batching,
            classes=life.classes,
            admission_mode=AdmissionMode.OFF,
        )
        self._gateways = {number: self.mesh.attach_gateway(number) for number in (1, 2)}
        self.mesh.post(TenantsChanged(1, 1, unequal_tenants(random.Random(life.seed))))
        self._calls: list[tuple[VirtualGateway, Call, Ask]] = []
        # Every worker is back long before the scheduler gives up waiting for it: a request fails only if the workers it
        # was on were lost again and again.
        assert _GRACE_S + max((blow.pause for blow in life.blows), default=0.0) < WORKER_GRACE_S / 2
        losses = sum(blow.kind in _LOSSES for blow in life.blows)
        self._refusals: dict[int, set[str]] = {}
        self._failures: set[str] = {"WORKER_LOST"} if losses >= MAX_LOSSES else set()

    @property
    def seen(self) -> Counter[str]:
        """What happened how often."""
        return self.mesh.seen

    @property
    def timeline(self) -> list[str]:
        """Events, and what the core made of them."""
        return self.mesh.timeline

    def play(self) -> None:
        """The whole life and the verdict."""
        mesh = self.mesh
        for index in range(len(self.life.workers)):
            mesh.attach_worker(index)
        for key, ask in enumerate(self.life.asks):
            mesh.at(ask.at, lambda key=key, ask=ask: self._submit(key, ask))  # type: ignore[misc]
        for blow in self.life.blows:
            mesh.at(blow.at, lambda blow=blow: self._strike(blow))  # type: ignore[misc]
        mesh.run()
        self._judge_rest()
        for gateway, call, ask in self._calls:
            if not gateway.lost:
                self._judge(call, ask)

    def _submit(self, key: int, ask: Ask) -> None:
        mesh, gateway = self.mesh, self._gateways[ask.gateway]
        if gateway.lost:
            return
        asked = submission(
            key,
            ask.prompt,
            ask.max_tokens,
            stop_token_ids=ask.stop_token_ids,
            sampling=ask.sampling,
            deadline_s=ask.deadline_s,
            prefix_salt=ask.salt,
            n=ask.n,
            traffic_class=ask.traffic_class,
            tenant=ask.tenant,
            priority=ask.priority,
        )
        refusals = set().union(*(refusals_for(asked, info) for info in mesh.infos))
        if all(worker.draining for worker in mesh.workers.values()):
            refusals.add("NO_WORKER")
        if ask.tenant == PARTIAL:
            refusals.add("KV_NEVER_FITS")
        call = mesh.submit(gateway, asked)
        self._refusals[key] = refusals
        self._calls.append((gateway, call, ask))
        for after in ask.cancels:
            mesh.at(mesh.now + after, lambda: gateway.lost or mesh.cancel(gateway, call))
        for begin, end in ask.stalls:
            mesh.at(mesh.now + begin, lambda: gateway.lost or mesh.pause(gateway, call))
            mesh.at(mesh.now + end, lambda: gateway.lost or mesh.unpause(gateway, call))
        for index, after in ask.stops:
            mesh.at(mesh.now + after, lambda index=index: gateway.lost or mesh.stop(gateway, call, index))  # type: ignore[misc]

    def _strike(self, blow: Blow) -> None:
        mesh = self.mesh
        if blow.kind == "reconnect":
            mesh.reconnect(blow.worker, blow.steps_alone, blow.pause, detach=blow.detach)
        elif blow.kind == "crash":
            mesh.crash(blow.worker, blow.pause)
        elif blow.kind == "drain":
            mesh.drain(blow.worker, _GRACE_S, blow.pause)
        elif not self._gateways[2].lost:
            mesh.lose_gateway(self._gateways[2])

    def _judge_rest(self) -> None:
        """Nothing is left anywhere, and both sides count the same blocks."""
        mesh = self.mesh
        assert mesh.core.idle
        assert not any(requests for requests in mesh.core._mesh.gateways.values())
        for worker in mesh.workers.values():
            device, known = worker.device, mesh.core._mesh.fleet.workers[worker.link]
            assert device.executor.idle
            assert device.counts.used == 0
            assert device.swap_space.num_free == device.swap_space.num_total
            if known.steps:
                # Before its first report it is taken to be empty.
                assert device.counts == known.ledger.counts
            assert len(known.ledger) == 0
            assert known.ledger.available == known.info.num_blocks
            assert not known.kept
            removed, stored = device.kv_cache.pool.take_events()
            keys = (known.prefixes - set(removed.tolist())) | set(stored.tolist())
            assert keys == set(device.kv_cache.pool.published_keys().tolist())

    def _judge(self, call: Call, ask: Ask) -> None:
        assert call.over, "no terminal"
        assert len(call.cancels_done) == call.cancels_sent
        if call.refused:
            assert call.refused in self._refusals[call.submission.request_key], call.refused
            assert not any(output.tokens or output.ends for output in call.outputs)
            return
        if ask.sampling.num_prompt_logprobs is not None:
            self._judge_prompt(call, ask, ask.sampling.num_prompt_logprobs)
        for index, output in enumerate(call.outputs):
            tokens, reason = run_alone(self._lone(ask, index))
            got = tuple(output.tokens)
            assert got == tokens[: len(got)], f"{call.submission.request_id}[{index}]: {got} instead of {tokens}"
            if not output.ends:
                assert call.cancelled, "an output without an end"
                continue
            (end,) = output.ends
            self.seen[f"end {end.reason.name.lower()}"] += 1
            self.seen["penalties"] += ask.penalties is not None
            self.seen["structure"] += ask.structure is not None
            if end.reason in (EndReason.STOP, EndReason.LENGTH):
                assert got == tokens
                assert end.reason is _REASONS[reason]
                assert end.failure is None
                if reason is WorkerEndReason.STOP:
                    assert end.stop_token_id == tokens[-1]
            elif end.failure is None:
                assert end.reason is EndReason.CANCELLED
                assert output.stopped, "ended without a reason"
                self.seen["stopped by its gateway"] += 1
            else:
                late = {"DEADLINE_PASSED"} if ask.deadline_s is not None else set()
                allowed = self._failures if end.reason is EndReason.FAILED else late
                assert end.failure.reason in allowed, end.failure
                self.seen[end.failure.reason] += 1

    def _judge_prompt(self, call: Call, ask: Ask, num_top: int) -> None:
        """What came of the prompt is what it would be alone; all of it, if a token came."""
        prompt = PromptLogprobs(len(ask.prompt) - 1)
        for data in call.prompt_logprobs:
            prompt.push(to_prompt_part(PromptLogprobsProto.FromString(data)))
        if any(output.tokens for output in call.outputs):
            assert prompt.complete
        want = prompt_logprobs_alone(self.life.workers[0].model, ask.prompt, num_top)
        place = 1
        while (part := prompt.take()) is not None:
            self.seen["logprobs of a prompt"] += 1
            assert part.first == place
            for found in part:
                logprob, top_logprobs = want[place - 1]
                assert math.isclose(found.logprob, logprob, abs_tol=1e-3)
                assert len(found.top_ids) == num_top
                assert all(map(partial(math.isclose, abs_tol=1e-3), found.top_logprobs, top_logprobs))
                place += 1

    def _lone(self, ask: Ask, index: int) -> Lone:
        asked = ask.sampling
        seed = (asked.seed + index) % 2**64
        sampling = WorkerSampling(
            asked.temperature, asked.top_p, asked.top_k, asked.min_p, seed, ask.penalties, structure=ask.structure
        )
        return Lone(self.life.workers[0].model, ask.prompt, ask.max_tokens, frozenset(ask.stop_token_ids), sampling)
