"""A worker without tensors: the contract of tercet.mesh.v1.Worker over a small block pool.

It enforces what a real worker cannot forgive: running out of blocks inside a plan, too many tokens in a step, too many
or unknown sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tercet.errors import EngineFaultError

from ..actions import NewSequence, Plan, Release, ReleaseCause, Rest, Resume, WorkerCommand
from ..events import (
    Ended,
    EndReason,
    Event,
    KvChanged,
    PlanEnded,
    PrefillProgress,
    SequenceReleased,
    SequenceRests,
    StepReported,
    WorkerInfo,
)
from .cost import StepCost
from .memory import SimulatedMemory
from .pool import salt_name
from .sequence import SimulatedSequence
from .text import HashedText, Text

_FREE_OF_CHARGE = StepCost(0.0)
_HASHED = HashedText()


@dataclass(slots=True)
class _Running:
    plan: Plan
    # Those of its joins that count.
    join: tuple[int, ...]
    step: int = 0
    step_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Habits:
    """What the contract leaves to workers, or seems to. The scheduler has to survive either reading.

    `eager_revoke`: a revoked plan's end is reported when the revocation is read, even before that of a plan that runs;
    and the joins of a plan that never ran count all the same. `reserve_ahead`: blocks are taken for the token being
    sampled too, a step early.
    """

    eager_revoke: bool = False
    reserve_ahead: bool = False


_PLAIN = Habits()


class SimulatedWorker:
    """Give it commands with `receive`; call `begin` at each boundary and, if `busy` then, `finish` when the step ends,
    `step_seconds` later.

    `verify`: blocks have contents, a token is chosen from what they really hold, and the pool is checked after every
    step; a wrong block gives a wrong text. Without it a token costs the same whatever the length of its sequence.
    What is in `failing` ends with a fault in the next step.
    """

    def __init__(
        self,
        link: int,
        info: WorkerInfo,
        *,
        caching: bool = True,
        habits: Habits = _PLAIN,
        verify: bool = True,
        cost: StepCost = _FREE_OF_CHARGE,
        text: Text = _HASHED,
    ) -> None:
        self.link = link
        self.info = info
        self.memory = SimulatedMemory(info, caching=caching, verify=verify)
        self.pool = self.memory.pool
        self.sequences: dict[int, SimulatedSequence] = {}
        # Forks that wait, with their leaders.
        self.leaders: dict[int, SimulatedSequence] = {}
        self.joined: set[int] = set()
        # Those that were told to rest, and not to join since.
        self.resting: set[int] = set()
        self.failing: set[int] = set()
        # Grammars are being compiled: who follows one takes part in no step that would bring its first token.
        self.compiling = False
        self.busy = False
        self.step_seconds = 0.0
        self.steps_run = 0
        # Of prompts: what steps computed.
        self.tokens_prefilled = 0
        self._habits = habits
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

    @property
    def empty(self) -> bool:
        """Whether nothing is there, not even on the way in."""
        return not (self.sequences or self.memory.swapped or self._mailbox)

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
                self._join(running.join)
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
        memory = self.memory
        memory.write_one(sequences[sequence_id] for sequence_id in decoding)
        for sequence_id, count in chunks:
            sequence = sequences[sequence_id]
            memory.write(sequence, count)
            prefills.append(PrefillProgress(sequence_id, sequence.computed, sequence.cached))
            if sequence.computed >= len(sequence.tokens):
                group = [sequence_id, *self._fork(sequence)]
                done += group
                self._decoding.update((each, sequences[each]) for each in group if each in self.joined)
        next_token, read_back = self._text.next_token, memory.read_back if self._verify else None
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
            self._plans.append(_Running(command, command.join))
            if self._habits.eager_revoke:
                gone = [each for each in self._plans if each.plan.plan_seq <= self._revoke_through and each.step == 0]
                for each in gone:
                    self._join(each.join)
                    self._plans.remove(each)
                    events.append(self._plan_ended(each, revoked=True))
        elif isinstance(command, Resume):
            for sequence_id in command.sequence_ids:
                if sequence_id in self.memory.swapped:
                    self.sequences[sequence_id] = self.memory.swap_in(sequence_id)
                    self._check_room()
        elif isinstance(command, Rest):
            events += [self._rest(sequence_id) for sequence_id in command.sequence_ids]
        else:
            assert isinstance(command, Release)
            events += [self._release(sequence_id, command.cause) for sequence_id in command.sequence_ids]

    def _add(self, new: NewSequence) -> None:
        assert 0 < len(new.token_ids) < new.max_length
        sequence = SimulatedSequence(new, list(new.token_ids), list(new.forks), chain=salt_name(new.prefix_salt))
        for sequence_id in (new.sequence_id, *(fork for fork, _ in new.forks)):
            assert sequence_id not in self.sequences, "a sequence came twice"
            assert sequence_id not in self.leaders, "a fork came twice"
            assert sequence_id not in self.memory.swapped, "a swapped sequence came as a new one"
        self.sequences[new.sequence_id] = sequence
        self.leaders.update((fork, sequence) for fork, _ in new.forks)
        self._check_room()

    def _check_room(self) -> None:
        assert len(self.sequences.keys() - self.resting) <= self.info.max_num_seqs, "too many sequences"

    def _join(self, sequence_ids: tuple[int, ...]) -> None:
        self.resting.difference_update(sequence_ids)
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
                    self.memory.match(sequence)
                held = self.compiling and sequence.new.sampling.has_grammar
                count = min(count, len(sequence.new.token_ids) - sequence.computed - held)
                if count:
                    chunks.append((sequence_id, count))
        decoding = list(self._decoding)
        self._step = decoding, chunks
        tokens = len(decoding) + sum(count for _, count in chunks)
        assert tokens <= self.info.max_num_batched_tokens, "too many tokens in a step"
        context = 0
        size, ahead = self.info.block_size, 1 if self._habits.reserve_ahead else 0
        for sequence in self._decoding.values():
            computed = sequence.computed
            context += computed
            if sequence.forked:
                self.memory.own_last_block(sequence)
            if computed + 1 + ahead > len(sequence.blocks) * size:
                self.memory.grow(sequence, computed + 1 + ahead)
        for sequence_id, count in chunks:
            sequence = self.sequences[sequence_id]
            context += sequence.computed
            self.memory.grow(sequence, sequence.computed + count + ahead)
            self.tokens_prefilled += count
        seconds = self._cost.seconds(tokens, context)
        self._step_us = round(seconds * 1e6)
        self.step_seconds = seconds + (self.memory.take_moved() * self.info.swap_block_ns * 1e-9 if tokens else 0.0)
        return tokens > 0

    def _fork(self, leader: SimulatedSequence) -> Iterator[int]:
        """Lets the forks of a sequence begin where it is."""
        forks, leader.forks = leader.forks, []
        for sequence_id, seed in forks:
            del self.leaders[sequence_id]
            self.sequences[sequence_id] = self.memory.fork(leader, sequence_id, seed)
            self._check_room()
            yield sequence_id

    def _release(self, sequence_id: int, cause: ReleaseCause) -> SequenceReleased:
        used = freed = 0
        found, swapped = True, False
        if sequence_id in self.sequences:
            sequence = self.sequences[sequence_id]
            used = len(sequence.blocks)
            if cause is ReleaseCause.SWAP and sequence.prefilled and len(sequence.tokens) > sequence.computed:
                swapped = self.memory.swap_out(sequence)
            freed = self._forget(sequence_id)
        elif sequence_id in self.leaders:
            leader = self.leaders.pop(sequence_id)
            leader.forks = [fork for fork in leader.forks if fork[0] != sequence_id]
            self.joined.discard(sequence_id)
        elif sequence_id in self.memory.swapped:
            if cause is ReleaseCause.SWAP:
                swapped, used = True, self.memory.swapped[sequence_id].num_blocks
            else:
                del self.memory.swapped[sequence_id]
        else:
            found = False
        return SequenceReleased(self.link, sequence_id, found, used, freed, self.pool.counts, swapped)

    def _rest(self, sequence_id: int) -> SequenceRests:
        sequence = self.sequences.get(sequence_id)
        self.joined.discard(sequence_id)
        self._decoding.pop(sequence_id, None)
        for each in self._plans:
            each.join = tuple(key for key in each.join if key != sequence_id)
        if sequence is not None and sequence.prefilled:
            self.resting.add(sequence_id)
            self.memory.trim(sequence)
        return SequenceRests(self.link, sequence_id, sequence is not None, self.pool.counts)

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
        self.resting.discard(sequence_id)
        self._decoding.pop(sequence_id, None)
        return self.memory.drop(sequence)

    def _note_changes(self, events: list[Event]) -> None:
        removed, stored = self.pool.take_changes()
        if removed or stored:
            events.append(KvChanged(self.link, False, removed, stored))

    def _plan_ended(self, running: _Running, *, revoked: bool) -> PlanEnded:
        plan_seq, step_us = running.plan.plan_seq, running.step_us
        return PlanEnded(self.link, plan_seq, running.step, revoked, self.pool.counts, step_us)
