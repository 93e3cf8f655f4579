"""A worker without tensors: the contract of tercet.mesh.v1.Worker over a real small block pool.

It enforces what a real worker cannot forgive (running out of blocks inside a plan, too many tokens in a step, unknown
sequences), and its next token is a hash of what the sequence's blocks really contain: a wrong block gives a wrong text.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.actions import NewSequence, Plan, Release, WorkerCommand
from scheduler.events import (
    BlockCounts,
    Ended,
    EndReason,
    Event,
    PlanEnded,
    PrefillProgress,
    Sampling,
    SequenceReleased,
    StepReported,
    WorkerInfo,
)

VOCAB = 50
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


def next_token(token_ids: Iterable[int], seed: int) -> int:
    """What the model would say: depends on every token before it, and on the seed."""
    return zlib.crc32(bytes(token_ids), seed & 0xFFFFFFFF) % VOCAB


def run_alone(
    prompt: tuple[int, ...], max_tokens: int, stops: tuple[int, ...], seed: int
) -> tuple[list[int], EndReason]:
    """The generated tokens of a request that has a worker for itself, one step at a time, and why it ends."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens, seed))
        if tokens[-1] in stops:
            return tokens[len(prompt) :], EndReason.STOP
    return tokens[len(prompt) :], EndReason.LENGTH


def worker_info(**changes: object) -> WorkerInfo:
    """A small worker."""
    values: dict[str, object] = {
        "worker_id": "worker-sim",
        "epoch": 1,
        "model": "tiny",
        "model_revision": "r1",
        "device": "cpu",
        "dtype": "float32",
        "block_size": 4,
        "num_blocks": 32,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_model_len": 128,
        "vocab_size": VOCAB,
    }
    return WorkerInfo(**{**values, **changes})  # type: ignore[arg-type]


class OutOfBlocks(Exception):
    """The scheduler promised blocks that are not there."""


class SimulatedPool:
    """Blocks with reference counts and an LRU of published ones; `content[b]` is what block b holds."""

    def __init__(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.block_size = block_size
        self.caching = caching
        self.free = list(range(num_blocks))
        self.content: list[list[int]] = [[] for _ in range(num_blocks)]
        self.references = [0] * num_blocks
        self.key_of: dict[int, object] = {}
        self.block_of: dict[object, int] = {}
        self.cached: OrderedDict[int, None] = OrderedDict()

    @property
    def counts(self) -> BlockCounts:
        used = sum(count > 0 for count in self.references)
        return BlockCounts(len(self.free), len(self.cached), used)

    def take(self) -> int:
        if self.free:
            block = self.free.pop()
        elif self.cached:
            block, _ = self.cached.popitem(last=False)
            del self.block_of[self.key_of.pop(block)]
        else:
            raise OutOfBlocks
        self.content[block] = []
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        self.cached.pop(block, None)
        self.references[block] += 1

    def publish(self, block: int, key: object) -> None:
        if self.caching and key not in self.block_of:
            self.block_of[key] = block
            self.key_of[block] = key

    def drop(self, block: int) -> bool:
        self.references[block] -= 1
        if self.references[block]:
            return False
        if block in self.key_of:
            self.cached[block] = None
        else:
            self.free.append(block)
        return True


@dataclass
class SimulatedSequence:
    """`computed` tokens are in `blocks`."""

    new: NewSequence
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    matched: bool = False

    @property
    def prefilled(self) -> bool:
        return self.computed >= len(self.new.token_ids)


@dataclass
class _Running:
    plan: Plan
    step: int = 0


class SimulatedWorker:
    """Give it commands with `receive`; call `begin` at each boundary and, if `busy` then, `finish` when the step ends.

    `eager_revoke`: a revoked plan's end is reported when the revocation is read, even before that of a plan that runs;
    and the joins of a plan that never ran count all the same. Both readings of the contract have to be survived.
    `reserve_ahead`: blocks are taken for the token being sampled too, a step early.
    """

    def __init__(
        self,
        link: int,
        info: WorkerInfo,
        *,
        caching: bool = True,
        eager_revoke: bool = False,
        reserve_ahead: bool = False,
    ) -> None:
        self.link = link
        self.info = info
        self.pool = SimulatedPool(info.num_blocks, info.block_size, caching)
        self.sequences: dict[int, SimulatedSequence] = {}
        self.joined: set[int] = set()
        self.busy = False
        self.steps_run = 0
        self.eager_revoke = eager_revoke
        self.reserve_ahead = reserve_ahead
        self._mailbox: deque[WorkerCommand] = deque()
        self._plans: deque[_Running] = deque()
        self._last_plan_seq = 0
        self._revoke_through = 0
        self._step: tuple[list[int], list[tuple[int, int]]] = ([], [])

    def receive(self, command: WorkerCommand) -> None:
        self._mailbox.append(command)

    def begin(self) -> list[Event]:
        """A step boundary: reads the mailbox, ends revoked plans, starts the next step if there is work."""
        assert not self.busy
        events: list[Event] = []
        while self._mailbox:
            self._read(self._mailbox.popleft(), events)
        while self._plans and not self.busy:
            running = self._plans[0]
            revoked = running.plan.plan_seq <= self._revoke_through
            if running.step == 0 and not revoked:
                self.joined.update(running.plan.join)
            if revoked or running.step == running.plan.num_steps or not self._prepare(running):
                self._plans.popleft()
                if running.step < running.plan.num_steps or revoked:
                    events.append(self._plan_ended(running, revoked=revoked))
            else:
                self.busy = True
        return events

    def finish(self) -> list[Event]:
        """The step ends."""
        assert self.busy
        self.busy = False
        self.steps_run += 1
        running = self._plans[0]
        decoding, chunks = self._step
        ids: list[int] = []
        tokens: list[int] = []
        ended: list[Ended] = []
        prefills: list[PrefillProgress] = []
        for sequence_id, count in chunks:
            sequence = self.sequences[sequence_id]
            self._write(sequence, count)
            prefills.append(PrefillProgress(sequence_id, sequence.computed, sequence.cached))
        for sequence_id in decoding:
            self._write(self.sequences[sequence_id], 1)
        for sequence_id in [*decoding, *(each for each, _ in chunks)]:
            sequence = self.sequences[sequence_id]
            if sequence.computed < len(sequence.tokens):
                continue
            token = next_token(self._read_back(sequence), sequence.new.sampling.seed)
            sequence.tokens.append(token)
            ids.append(sequence_id)
            tokens.append(token)
            if token in sequence.new.stop_token_ids:
                ended.append(self._end(sequence_id, EndReason.STOP, token))
            elif len(sequence.tokens) >= sequence.new.max_length:
                ended.append(self._end(sequence_id, EndReason.LENGTH, 0))
        step = running.step
        running.step += 1
        report = StepReported(
            self.link,
            running.plan.plan_seq,
            step,
            tuple(ids),
            tuple(tokens),
            tuple(prefills),
            tuple(ended),
            self.pool.counts,
        )
        events: list[Event] = [report]
        if running.step == running.plan.num_steps:
            self._plans.popleft()
            events.append(self._plan_ended(running, revoked=False))
        return events

    def _read(self, command: WorkerCommand, events: list[Event]) -> None:
        if isinstance(command, NewSequence):
            assert command.sequence_id not in self.sequences, "a sequence came twice"
            assert 0 < len(command.token_ids) < command.max_length
            self.sequences[command.sequence_id] = SimulatedSequence(command, list(command.token_ids))
            assert len(self.sequences) <= self.info.max_num_seqs, "too many sequences"
        elif isinstance(command, Plan):
            assert command.plan_seq == self._last_plan_seq + 1
            assert command.num_steps >= 1
            assert command.revoke_through < command.plan_seq
            self._last_plan_seq = command.plan_seq
            self._revoke_through = max(self._revoke_through, command.revoke_through)
            self._plans.append(_Running(command))
            if self.eager_revoke:
                self.joined.update(command.join)
                gone = [each for each in self._plans if each.plan.plan_seq <= self._revoke_through and each.step == 0]
                for each in gone:
                    self._plans.remove(each)
                    events.append(self._plan_ended(each, revoked=True))
        else:
            assert isinstance(command, Release)
            for sequence_id in command.sequence_ids:
                found = sequence_id in self.sequences
                used = len(self.sequences[sequence_id].blocks) if found else 0
                freed = self._forget(sequence_id) if found else 0
                events.append(SequenceReleased(self.link, sequence_id, found, used, freed, self.pool.counts))

    def _prepare(self, running: _Running) -> bool:
        """Takes the blocks of the next step; False if there is nothing to do."""
        chunks: list[tuple[int, int]] = []
        if running.step == 0:
            for sequence_id, count in running.plan.chunks:
                sequence = self.sequences.get(sequence_id)
                if sequence is None or sequence.prefilled:
                    continue
                if not sequence.matched:
                    self._match(sequence)
                chunks.append((sequence_id, min(count, len(sequence.new.token_ids) - sequence.computed)))
        busy = {sequence_id for sequence_id, _ in chunks}
        decoding = [
            key
            for key, sequence in self.sequences.items()
            if key in self.joined and sequence.prefilled and key not in busy
        ]
        self._step = decoding, chunks
        tokens = len(decoding) + sum(count for _, count in chunks)
        assert tokens <= self.info.max_num_batched_tokens, "too many tokens in a step"
        for sequence_id, count in [*((key, 1) for key in decoding), *chunks]:
            sequence = self.sequences[sequence_id]
            room = sequence.computed + count + (1 if self.reserve_ahead else 0)
            while len(sequence.blocks) * self.pool.block_size < min(room, sequence.new.max_length):
                sequence.blocks.append(self.pool.take())
        return tokens > 0

    def _match(self, sequence: SimulatedSequence) -> None:
        sequence.matched = True
        size = self.pool.block_size
        # At least one token has to be computed.
        for start in range(0, (len(sequence.tokens) - 1) // size * size, size):
            key = (sequence.new.prefix_salt, tuple(sequence.tokens[: start + size]))
            block = self.pool.block_of.get(key)
            if block is None:
                break
            self.pool.share(block)
            sequence.blocks.append(block)
            sequence.computed += size
        sequence.cached = sequence.computed

    def _write(self, sequence: SimulatedSequence, count: int) -> None:
        size = self.pool.block_size
        for position in range(sequence.computed, sequence.computed + count):
            block = sequence.blocks[position // size]
            assert self.pool.references[block] == 1, "writes into a shared block"
            self.pool.content[block].append(sequence.tokens[position])
            if (position + 1) % size == 0:
                self.pool.publish(block, (sequence.new.prefix_salt, tuple(sequence.tokens[: position + 1])))
        sequence.computed += count

    def _read_back(self, sequence: SimulatedSequence) -> list[int]:
        read = [token for block in sequence.blocks for token in self.pool.content[block]]
        assert read == sequence.tokens, "the cache holds something else"
        return read

    def _end(self, sequence_id: int, reason: EndReason, stop: int) -> Ended:
        used = len(self.sequences[sequence_id].blocks)
        return Ended(sequence_id, reason, stop, None, used, self._forget(sequence_id))

    def _forget(self, sequence_id: int) -> int:
        sequence = self.sequences.pop(sequence_id)
        self.joined.discard(sequence_id)
        # Leaves first, so that the root of a prefix is evicted last.
        return sum(self.pool.drop(block) for block in reversed(sequence.blocks))

    def _plan_ended(self, running: _Running, *, revoked: bool) -> PlanEnded:
        return PlanEnded(self.link, running.plan.plan_seq, running.step, revoked, self.pool.counts)
