"""A worker without tensors: the contract of tercet.mesh.v1.Worker over a small block pool.

It enforces what a real worker cannot forgive: running out of blocks inside a plan, too many tokens in a step, too many
or unknown sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tercet.errors import EngineFaultError

from ..actions import NewSequence, Plan, Release, ReleaseCause, Resume, WorkerCommand
from ..events import (
    Ended,
    EndReason,
    Event,
    KvChanged,
    PlanEnded,
    PrefillProgress,
    SequenceReleased,
    StepReported,
    WorkerInfo,
)
from .cost import StepCost
from .pool import SimulatedPool, block_name, salt_name
from .sequence import SimulatedSequence, SwappedSequence
from .text import HashedText, Text

_FREE_OF_CHARGE = StepCost(0.0)
_HASHED = HashedText()


@dataclass(slots=True)
class _Running:
    plan: Plan
    step: int = 0
    step_us: tuple[int, ...] = ()


class SimulatedWorker:
    """Give it commands with `receive`; call `begin` at each boundary and, if `busy` then, `finish` when the step ends,
    `step_seconds` later.

    `verify`: blocks have contents, a token is chosen from what they really hold, and the pool is checked after every
    step; a wrong block gives a wrong text. Without it a token costs the same whatever the length of its sequence.
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
        verify: bool = True,
        cost: StepCost = _FREE_OF_CHARGE,
        text: Text = _HASHED,
    ) -> None:
        self.link = link
        self.info = info
        self.pool = SimulatedPool(info.num_blocks, info.block_size, caching=caching, contents=verify)
        self.sequences: dict[int, SimulatedSequence] = {}
        # Forks that wait, with their leaders.
        self.leaders: dict[int, SimulatedSequence] = {}
        self.swapped: dict[int, SwappedSequence] = {}
        self.joined: set[int] = set()
        # Sequences that end with a fault in the next step.
        self.failing: set[int] = set()
        self.busy = False
        self.step_seconds = 0.0
        self.steps_run = 0
        # Of prompts: what steps computed, and what the prefix cache had.
        self.tokens_prefilled = 0
        self.tokens_cached = 0
        self.eager_revoke = eager_revoke
        self.reserve_ahead = reserve_ahead
        self._verify = verify
        self._cost = cost
        self._text = text
        self._mailbox: deque[WorkerCommand] = deque()
        self._plans: deque[_Running] = deque()
        self._last_plan_seq = 0
        self._revoke_through = 0
        self._step: tuple[list[int], list[tuple[int, int]]] = ([], [])
        # Those that decode in every step.
        self._decoding: dict[int, SimulatedSequence] = {}
        self._told_cache = False
        self._step_us = 0
        # To and from host memory since the last step, which waits for them.
        self._blocks_moved = 0

    @property
    def swap_blocks_used(self) -> int:
        """Blocks in host memory."""
        return sum(swapped.num_blocks for swapped in self.swapped.values())

    @property
    def empty(self) -> bool:
        """Whether nothing is there, not even on the way in."""
        return not (self.sequences or self.swapped or self._mailbox)

    def receive(self, command: WorkerCommand) -> None:
        """A command arrives; it is read at the next boundary."""
        self._mailbox.append(command)

    def begin(self) -> list[Event]:
        """A step boundary: reads the mailbox, ends revoked plans, starts the next step if there is work."""
        assert not self.busy
        events: list[Event] = []
        if not self._told_cache:
            self._told_cache = True
            events.append(KvChanged(self.link, True, (), ()))
        while self._mailbox:
            self._read(self._mailbox.popleft(), events)
        while self._plans and not self.busy:
            running = self._plans[0]
            revoked = running.plan.plan_seq <= self._revoke_through
            if running.step == 0 and not revoked:
                self._join(running.plan.join)
            if revoked or running.step == running.plan.num_steps or not self._prepare(running):
                self._plans.popleft()
                events.append(self._plan_ended(running, revoked=revoked))
            else:
                self.busy = True
        self._note_changes(events)
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
        sequences = self.sequences
        done = list(decoding)
        self._write_one(decoding)
        for sequence_id, count in chunks:
            sequence = sequences[sequence_id]
            self._write(sequence, count)
            prefills.append(PrefillProgress(sequence_id, sequence.computed, sequence.cached))
            if sequence.computed >= len(sequence.tokens):
                group = [sequence_id, *self._fork(sequence)]
                done += group
                self._decoding.update((each, sequences[each]) for each in group if each in self.joined)
        next_token, read_back = self._text.next_token, self._read_back if self._verify else None
        for sequence_id in [*self.failing]:
            ended += self._fail(sequence_id)
        for sequence_id in done:
            if sequence_id not in sequences:
                continue
            sequence = sequences[sequence_id]
            known = sequence.tokens if read_back is None else read_back(sequence)
            token = next_token(known, sequence.new.sampling.seed)
            sequence.tokens.append(token)
            ids.append(sequence_id)
            tokens.append(token)
            if token in sequence.new.stop_token_ids:
                ended.append(self._end(sequence_id, EndReason.STOP, token))
            elif len(sequence.tokens) >= sequence.new.max_length:
                ended.append(self._end(sequence_id, EndReason.LENGTH, 0))
        if self._verify:
            problems = self.pool.check()
            assert not problems, problems
        step_us = self._step_us
        step, running.step = running.step, running.step + 1
        running.step_us += (step_us,)
        plan_seq, counts = running.plan.plan_seq, self.pool.counts
        events: list[Event] = [
            StepReported(
                self.link, plan_seq, step, tuple(ids), tuple(tokens), tuple(prefills), tuple(ended), counts, step_us
            )
        ]
        if running.step == running.plan.num_steps:
            self._plans.popleft()
            events.append(self._plan_ended(running, revoked=False))
        self._note_changes(events)
        return events

    def _read(self, command: WorkerCommand, events: list[Event]) -> None:
        if isinstance(command, NewSequence):
            self._add(command)
        elif isinstance(command, Plan):
            assert command.plan_seq == self._last_plan_seq + 1
            assert command.num_steps >= 1
            assert command.revoke_through < command.plan_seq
            self._last_plan_seq = command.plan_seq
            self._revoke_through = max(self._revoke_through, command.revoke_through)
            self._plans.append(_Running(command))
            if self.eager_revoke:
                gone = [each for each in self._plans if each.plan.plan_seq <= self._revoke_through and each.step == 0]
                for each in gone:
                    self._join(each.plan.join)
                    self._plans.remove(each)
                    events.append(self._plan_ended(each, revoked=True))
        elif isinstance(command, Resume):
            for sequence_id in command.sequence_ids:
                if sequence_id in self.swapped:
                    self._swap_in(sequence_id)
        else:
            assert isinstance(command, Release)
            events += [self._release(sequence_id, command.cause) for sequence_id in command.sequence_ids]

    def _add(self, new: NewSequence) -> None:
        assert 0 < len(new.token_ids) < new.max_length
        sequence = SimulatedSequence(new, list(new.token_ids), list(new.forks), chain=salt_name(new.prefix_salt))
        for sequence_id in (new.sequence_id, *(fork for fork, _ in new.forks)):
            assert sequence_id not in self.sequences, "a sequence came twice"
            assert sequence_id not in self.leaders, "a fork came twice"
            assert sequence_id not in self.swapped, "a swapped sequence came as a new one"
        self.sequences[new.sequence_id] = sequence
        self.leaders.update((fork, sequence) for fork, _ in new.forks)
        self._check_room()

    def _check_room(self) -> None:
        assert len(self.sequences) + len(self.leaders) <= self.info.max_num_seqs, "too many sequences"

    def _join(self, sequence_ids: tuple[int, ...]) -> None:
        for sequence_id in sequence_ids:
            sequence = self.sequences.get(sequence_id)
            if sequence is None:
                if sequence_id in self.leaders:
                    self.joined.add(sequence_id)
                continue
            self.joined.add(sequence_id)
            self.joined.update(fork for fork, _ in sequence.forks)
            if sequence.prefilled:
                self._decoding[sequence_id] = sequence

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
        decoding = list(self._decoding)
        self._step = decoding, chunks
        tokens = len(decoding) + sum(count for _, count in chunks)
        assert tokens <= self.info.max_num_batched_tokens, "too many tokens in a step"
        context = 0
        size, ahead = self.info.block_size, 1 if self.reserve_ahead else 0
        for sequence in self._decoding.values():
            computed = sequence.computed
            context += computed
            if sequence.forked:
                self._own_last_block(sequence)
            if computed + 1 + ahead > len(sequence.blocks) * size:
                self._grow(sequence, computed + 1 + ahead)
        for sequence_id, count in chunks:
            sequence = self.sequences[sequence_id]
            context += sequence.computed
            self._grow(sequence, sequence.computed + count + ahead)
            self.tokens_prefilled += count
        seconds = self._cost.seconds(tokens, context)
        self._step_us = round(seconds * 1e6)
        self.step_seconds = seconds + self._blocks_moved * self.info.swap_block_ns * 1e-9
        if tokens:
            self._blocks_moved = 0
        return tokens > 0

    def _grow(self, sequence: SimulatedSequence, num_tokens: int) -> None:
        while len(sequence.blocks) * self.info.block_size < min(num_tokens, sequence.new.max_length):
            sequence.blocks.append(self.pool.take())

    def _own_last_block(self, sequence: SimulatedSequence) -> None:
        """Copies a partial block before the first write into it if others still use it: the last one keeps it."""
        sequence.forked = False
        index, filled = divmod(sequence.computed, self.info.block_size)
        if filled and self.pool.references[sequence.blocks[index]] > 1:
            sequence.blocks[index] = self.pool.copy(sequence.blocks[index])

    def _match(self, sequence: SimulatedSequence) -> None:
        sequence.matched = True
        size = self.info.block_size
        # At least one token has to be computed.
        for start in range(0, (len(sequence.tokens) - 1) // size * size, size):
            name = block_name(sequence.chain, sequence.tokens[start : start + size])
            block = self.pool.block_of.get(name)
            if block is None:
                break
            self.pool.share(block)
            sequence.blocks.append(block)
            sequence.chain = name
            sequence.computed += size
        sequence.cached = sequence.computed
        self.tokens_cached += sequence.cached

    def _write(self, sequence: SimulatedSequence, count: int) -> None:
        size = self.info.block_size
        start, end = sequence.computed, sequence.computed + count
        if self._verify:
            for position in range(start, end):
                block = sequence.blocks[position // size]
                assert self.pool.references[block] == 1, "writes into a shared block"
                assert len(self.pool.content[block]) == position % size, "writes into the wrong slot"
                self.pool.content[block].append(sequence.tokens[position])
        sequence.computed = end
        for index in range(start // size, end // size):
            self._publish(sequence, index)

    def _write_one(self, sequence_ids: list[int]) -> None:
        """`_write` of one token for each, which is most of what a worker does."""
        sequences, size, verify = self.sequences, self.info.block_size, self._verify
        for sequence_id in sequence_ids:
            sequence = sequences[sequence_id]
            if verify:
                self._write(sequence, 1)
                continue
            sequence.computed += 1
            if not sequence.computed % size:
                self._publish(sequence, sequence.computed // size - 1)

    def _publish(self, sequence: SimulatedSequence, index: int) -> None:
        """A block of a sequence is full."""
        if self.pool.caching:
            size = self.info.block_size
            sequence.chain = block_name(sequence.chain, sequence.tokens[index * size : (index + 1) * size])
            self.pool.publish(sequence.blocks[index], sequence.chain)

    def _read_back(self, sequence: SimulatedSequence) -> list[int]:
        read = [token for block in sequence.blocks for token in self.pool.content[block]]
        assert read == sequence.tokens, "the cache holds something else"
        return read

    def _fork(self, leader: SimulatedSequence) -> Iterator[int]:
        """Lets the forks of a sequence begin where it is."""
        forks, leader.forks = leader.forks, []
        shared = leader.blocks[: -(-leader.computed // self.info.block_size)]
        for sequence_id, seed in forks:
            del self.leaders[sequence_id]
            for block in shared:
                self.pool.share(block)
            sampling = replace(leader.new.sampling, seed=seed)
            self.sequences[sequence_id] = SimulatedSequence(
                replace(leader.new, sequence_id=sequence_id, sampling=sampling, forks=()),
                list(leader.tokens),
                blocks=list(shared),
                computed=leader.computed,
                matched=True,
                forked=True,
                chain=leader.chain,
            )
            leader.forked = True
            yield sequence_id

    def _release(self, sequence_id: int, cause: ReleaseCause) -> SequenceReleased:
        used = freed = 0
        found, swapped = True, False
        if sequence_id in self.sequences:
            sequence = self.sequences[sequence_id]
            used = len(sequence.blocks)
            if cause is ReleaseCause.SWAP and sequence.prefilled and len(sequence.tokens) > sequence.computed:
                swapped = self._swap_out(sequence_id, sequence)
            freed = self._forget(sequence_id)
        elif sequence_id in self.leaders:
            leader = self.leaders.pop(sequence_id)
            leader.forks = [fork for fork in leader.forks if fork[0] != sequence_id]
            self.joined.discard(sequence_id)
        elif sequence_id in self.swapped:
            if cause is ReleaseCause.SWAP:
                swapped, used = True, self.swapped[sequence_id].num_blocks
            else:
                del self.swapped[sequence_id]
        else:
            found = False
        return SequenceReleased(self.link, sequence_id, found, used, freed, self.pool.counts, swapped)

    def _swap_out(self, sequence_id: int, sequence: SimulatedSequence) -> bool:
        """Copies the blocks to host memory, if there is room."""
        if self.swap_blocks_used + len(sequence.blocks) > self.info.num_swap_blocks:
            return False
        self._blocks_moved += len(sequence.blocks)
        contents = tuple(tuple(self.pool.content[block]) for block in sequence.blocks) if self._verify else ()
        self.swapped[sequence_id] = SwappedSequence(sequence, len(sequence.blocks), contents)
        return True

    def _swap_in(self, sequence_id: int) -> None:
        swapped = self.swapped.pop(sequence_id)
        sequence = swapped.sequence
        self._blocks_moved += swapped.num_blocks
        sequence.blocks = [self.pool.take() for _ in range(swapped.num_blocks)]
        sequence.forked = False
        for block, content in zip(sequence.blocks, swapped.contents, strict=False):
            self.pool.content[block] = list(content)
        self.sequences[sequence_id] = sequence
        self._check_room()

    def _end(self, sequence_id: int, reason: EndReason, stop: int) -> Ended:
        used = len(self.sequences[sequence_id].blocks)
        return Ended(sequence_id, reason, stop, None, used, self._forget(sequence_id))

    def _fail(self, sequence_id: int) -> Iterator[Ended]:
        """Ends a sequence, and what waits to be forked from it, with a fault."""
        self.failing.discard(sequence_id)
        if sequence_id not in self.sequences:
            return
        forks, used = self.sequences[sequence_id].forks, len(self.sequences[sequence_id].blocks)
        failure = EngineFaultError("a simulated fault")
        yield Ended(sequence_id, EndReason.FAILED, 0, failure, used, self._forget(sequence_id))
        for fork, _ in forks:
            del self.leaders[fork]
            self.joined.discard(fork)
            yield Ended(fork, EndReason.FAILED, 0, failure, 0, 0)

    def _forget(self, sequence_id: int) -> int:
        """Gives the blocks back; returns how many became free. Forks that wait go with their leader."""
        sequence = self.sequences.pop(sequence_id)
        self.joined.discard(sequence_id)
        self._decoding.pop(sequence_id, None)
        # Leaves first, so that the root of a prefix is evicted last.
        return sum(self.pool.drop(block) for block in reversed(sequence.blocks))

    def _note_changes(self, events: list[Event]) -> None:
        removed, stored = self.pool.take_changes()
        if removed or stored:
            events.append(KvChanged(self.link, False, removed, stored))

    def _plan_ended(self, running: _Running, *, revoked: bool) -> PlanEnded:
        plan_seq, step_us = running.plan.plan_seq, running.step_us
        return PlanEnded(self.link, plan_seq, running.step, revoked, self.pool.counts, step_us)
