"""All sequences of a worker, by id: those that run, forks that wait for their leader, and those swapped out.

Knows no plans and no steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from weakref import WeakValueDictionary

import structlog

from tercet.errors import EngineFaultError

from . import _core
from .grammars import Constraint, Grammars
from .kv_cache import KVCache
from .messages import Ended, EndReason, Failure, NewSequence, ReleaseCause, Released, Resting
from .sequence import Sequence
from .sequence_group import SequenceGroup
from .swap_space import SwapSpace

log = structlog.get_logger()


class Sequences:
    """An id is at one place: among the running ones, the forks that have not begun, or the swapped ones.

    Whatever way a sequence leaves, its blocks are given back, in the pool or in host memory.
    """

    def __init__(self, kv_cache: KVCache, swap_space: SwapSpace, grammars: Grammars | None = None) -> None:
        self._kv_cache = kv_cache
        self._grammars = grammars
        self._swap_space = swap_space
        self._running: dict[int, Sequence] = {}
        self._leaders: dict[int, Sequence] = {}  # by the ids of their forks
        self._swapped: dict[int, Sequence] = {}
        self._returning: dict[int, Sequence] = {}  # of the running ones, those whose blocks are being copied back
        # By the ids of their members: one that comes back after a preemption is a sibling still.
        self._groups: WeakValueDictionary[int, SequenceGroup] = WeakValueDictionary()
        self._untold: list[Ended] = []

    def __len__(self) -> int:
        return len(self._running) + len(self._leaders) + len(self._swapped)

    def get(self, sequence_id: int) -> Sequence | None:
        """One that runs; None also for a fork that has not begun, and for a swapped one."""
        return self._running.get(sequence_id)

    def runs(self, sequence: Sequence) -> bool:
        """Whether it is one that runs: not if it has ended, or went and came back."""
        return self._running.get(sequence.spec.sequence_id) is sequence

    def knows(self, spec: NewSequence) -> bool:
        """Whether the sequence's id, or that of one of its forks, is taken."""
        members = {spec.sequence_id, *(fork.sequence_id for fork in spec.forks)}
        return any(members & ids.keys() for ids in (self._running, self._leaders, self._swapped))

    @property
    def has_untold(self) -> bool:
        """Whether `take_untold` has something."""
        return bool(self._untold)

    def join(self, sequence_ids: Iterable[int]) -> None:
        """Lets running sequences decode from when their prefill is complete; other ids have ended meanwhile."""
        for sequence_id in sequence_ids:
            if sequence := self._running.get(sequence_id):
                sequence.in_decode_set = True

    def decoding(self) -> Iterator[Sequence]:
        """Those that take part in every step."""
        return (sequence for sequence in self._running.values() if sequence.decodes)

    def add(self, spec: NewSequence) -> None:
        """Takes a sequence, and its forks as waiting. One that cannot be run ends instead: see `take_untold`."""
        members = (spec.sequence_id, *(fork.sequence_id for fork in spec.forks))
        for sequence_id in members:
            if self._drop(sequence_id) is not None:
                log.error("sequence_id_reused", sequence_id=sequence_id)
        problem = spec.problem
        if spec.sampling.structure is not None and self._grammars is None:
            problem = problem or "it follows no grammars"
        if problem is not None:
            log.error("sequence_refused", sequence_id=spec.sequence_id, problem=problem)
            failure = _fault(f"the worker cannot run the sequence: {problem}")
            self._untold += (Ended(member, EndReason.FAILED, 0, 0, failure=failure) for member in members)
            return
        group = self._groups.get(spec.sequence_id) or SequenceGroup()
        constraint = self._constraint(spec, spec.token_ids)
        sequence = Sequence(spec, self._kv_cache.new_table(spec.prefix_salt), group, constraint)
        if constraint is not None:
            constraint.begin()
        self._running[spec.sequence_id] = sequence
        self._leaders |= {fork.sequence_id: sequence for fork in spec.forks}

    def begin_forks(self, leader: Sequence) -> list[Sequence]:
        """The forks of a leader whose prefill is complete, in order: they share its blocks and run from now on."""
        children = [leader.fork(fork, self._constraint(leader.spec, leader.token_ids)) for fork in leader.forks]
        self._forget_forks(leader)
        self._running |= {child.spec.sequence_id: child for child in children}
        self._groups |= {member.spec.sequence_id: leader.group for member in (leader, *children)}
        return children

    def release(self, sequence_ids: Iterable[int], cause: ReleaseCause) -> list[Released]:
        """Lets sequences go; the answers, one for each id. A leader takes forks that have not begun with it."""
        if cause is ReleaseCause.SWAP:
            # Who asks counts on the host memory of those that come back.
            self.welcome(wait=True)
        answers = []
        taken_along: set[int] = set()
        for sequence_id in sequence_ids:
            sequence = self._running.get(sequence_id)
            if cause is ReleaseCause.SWAP and sequence is not None and self._can_swap(sequence):
                answer = self._swap_out(sequence)
            elif cause is ReleaseCause.SWAP and sequence_id in self._swapped:
                answer = self._released(sequence_id, cause, (0, 0), swapped=True)
            else:
                if sequence is not None:
                    taken_along.update(fork.sequence_id for fork in sequence.forks)
                blocks = self._drop(sequence_id)
                if blocks is None and sequence_id in taken_along:
                    taken_along.remove(sequence_id)
                    blocks = (0, 0)
                answer = self._released(sequence_id, cause, blocks)
            log.info(
                "sequence_released", sequence_id=sequence_id, cause=cause.value, found=answer.found,
                blocks_freed=answer.blocks_freed, swapped=answer.swapped,
            )  # fmt: skip
            answers.append(answer)
        return answers

    def rest(self, sequence_ids: Iterable[int]) -> list[Resting]:
        """Lets sequences stop to decode, and keep their blocks, until they are joined again; the answers, one for each
        id."""
        answers = []
        for sequence_id in sequence_ids:
            sequence = self._running.get(sequence_id)
            if sequence is not None:
                sequence.in_decode_set = False
            answers.append(Resting(sequence_id, sequence is not None, self._kv_cache.counts()))
        return answers

    def resume(self, sequence_ids: Iterable[int]) -> None:
        """Brings swapped sequences back; ids that are not swapped are ignored. One without room ends: `take_untold`."""
        for sequence_id in sequence_ids:
            if (sequence := self._swapped.pop(sequence_id, None)) is None:
                continue
            self._running[sequence_id] = sequence
            try:
                self._swap_in(sequence)
            except _core.OutOfBlocks as error:
                # Credits make this impossible; a scheduler that breaks them must not take the others down.
                self._untold += self.fail(sequence, str(error))

    @property
    def num_returning(self) -> int:
        """Running sequences that do not decode yet, since their blocks are being copied back."""
        return len(self._returning)

    def welcome(self, *, wait: bool = False) -> bool:
        """Lets those decode whose blocks are back; if `wait`, all that come. Whether one takes part in steps now."""
        back = [each for each in self._returning.values() if wait or each.returning is None or each.returning.query()]
        for sequence in back:
            if sequence.returning is not None:
                sequence.returning.synchronize()
            self._settle(sequence)
        return any(sequence.decodes for sequence in back)

    def end(
        self, sequence: Sequence, reason: EndReason, *, stop_token_id: int = 0, failure: Failure | None = None
    ) -> Ended:
        """A running sequence without waiting forks ends."""
        sequence_id = sequence.spec.sequence_id
        del self._running[sequence_id]
        self._give_up_return(sequence)
        used, freed = sequence.leave()
        return Ended(sequence_id, reason, used, freed, stop_token_id, failure)

    def fail(self, sequence: Sequence, problem: str | Failure) -> list[Ended]:
        """A running sequence ends FAILED, and so do its forks that have not begun. A text is a fault of the worker."""
        failure = _fault(problem) if isinstance(problem, str) else problem
        log.error("sequence_failed", sequence_id=sequence.spec.sequence_id, problem=failure.message)
        forks = [Ended(fork.sequence_id, EndReason.FAILED, 0, 0, failure=failure) for fork in sequence.forks]
        self._forget_forks(sequence)
        return [self.end(sequence, EndReason.FAILED, failure=failure), *forks]

    @property
    def num_masked(self) -> int:
        """Sequences whose texts keep to grammars."""
        return 0 if self._grammars is None else len(self._grammars)

    def settle_masks(self) -> bool:
        """Where nothing is computed: waits a little for masks, and ends those whose grammar failed: `take_untold`.
        Whether masks are still on their way."""
        if self._grammars is None or not self._grammars.settle():
            return False
        failed = {id(each): each.problem for each in self._grammars.take_failed()}
        for sequence in [each for each in self._running.values() if id(each.constraint) in failed]:
            problem = failed[id(sequence.constraint)]
            assert problem is not None
            self._untold += self.fail(sequence, problem)
        return self._grammars.has_pending

    def take_untold(self) -> list[Ended]:
        """Ends that came about between steps and have not been told; the next step tells them."""
        untold, self._untold = self._untold, []
        return untold

    def clear(self) -> None:
        """Lets all go, without a word."""
        if len(self):
            log.info("sequences_dropped", count=len(self))
        for sequence_id in (*self._running, *self._swapped):
            self._drop(sequence_id)
        self._untold = []

    def check(self) -> None:
        """Raises `_core.PoolCorrupt` naming the first broken invariant of the pools on the device and on the host."""
        self._kv_cache.check()
        self._swap_space.check(each.host_blocks for each in (*self._swapped.values(), *self._returning.values()))

    def _drop(self, sequence_id: int) -> tuple[int, int] | None:
        """Forgets an id wherever it is. The blocks it alone held and those it freed, None if it is unknown."""
        if sequence := self._running.pop(sequence_id, None):
            self._forget_forks(sequence)
            self._give_up_return(sequence)
            return sequence.leave()
        if leader := self._leaders.pop(sequence_id, None):
            leader.forks = tuple(fork for fork in leader.forks if fork.sequence_id != sequence_id)
            return 0, 0
        if sequence := self._swapped.pop(sequence_id, None):
            self._swap_space.release(sequence.host_blocks)
            return sequence.leave()
        return None

    def _constraint(self, spec: NewSequence, token_ids: Seq[int]) -> Constraint | None:
        structure = spec.sampling.structure
        return None if structure is None or self._grammars is None else self._grammars.new(structure, token_ids)

    def _forget_forks(self, leader: Sequence) -> None:
        for fork in leader.forks:
            del self._leaders[fork.sequence_id]
        leader.forks = ()

    def _can_swap(self, sequence: Sequence) -> bool:
        return sequence.prefill_complete and sequence.table.num_blocks <= self._swap_space.num_free

    def _swap_out(self, sequence: Sequence) -> Released:
        sequence_id = sequence.spec.sequence_id
        blocks = sequence.table.blocks()
        sequence.host_blocks = self._swap_space.save(blocks)
        sequence.in_decode_set = False
        freed = sequence.table.release()
        # Who got them now would wait for their copies.
        self._kv_cache.pool.hand_out_last(blocks)
        self._swapped[sequence_id] = self._running.pop(sequence_id)
        return self._released(sequence_id, ReleaseCause.SWAP, (len(blocks), freed), swapped=True)

    def _swap_in(self, sequence: Sequence) -> None:
        self._returning[sequence.spec.sequence_id] = sequence
        table, num_tokens = sequence.table, sequence.num_computed
        # What the prefix cache still has need not be copied.
        first = table.match_prefix(sequence.token_ids[:num_tokens]) // self._kv_cache.pool.block_size
        # Nothing computed has to wait for these blocks, as it does for what the cache reserves.
        table.reserve(num_tokens)
        sequence.returning = self._swap_space.load(sequence.host_blocks[first:], table.blocks()[first:])
        if sequence.returning is None:
            self._settle(sequence)

    def _settle(self, sequence: Sequence) -> None:
        """Its blocks are back: others may find them, too."""
        sequence.table.commit(sequence.token_ids[sequence.table.num_tokens : sequence.num_computed])
        self._give_up_return(sequence)

    def _give_up_return(self, sequence: Sequence) -> None:
        if self._returning.pop(sequence.spec.sequence_id, None) is not None:
            sequence.returning = None
            self._swap_space.release(sequence.host_blocks)
            sequence.host_blocks = []

    def _released(
        self, sequence_id: int, cause: ReleaseCause, blocks: tuple[int, int] | None, *, swapped: bool = False
    ) -> Released:
        used, freed = blocks or (0, 0)
        return Released(sequence_id, cause, blocks is not None, used, freed, self._kv_cache.counts(), swapped)


def _fault(message: str) -> Failure:
    return Failure(EngineFaultError.reason, message)
