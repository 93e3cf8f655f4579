"""A worker as the scheduler knows it. Holds state and answers questions about it; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from .credits import CreditLedger, blocks_for
from .events import WorkerInfo
from .lifecycle import LEAVING, RUNNING, State
from .output_length import LeaveRates
from .owed_waits import OwedWaits
from .plan_length import PlanPace
from .policy import Limits
from .prefix_index import PromisedPrefixes
from .progress import Foreseen, Progress, Silence
from .sequence import Sequence
from .step_time import StepTimes
from .window import PlanWindow


@dataclass(slots=True, eq=False)
class Worker:
    """One worker for the life of one stream: its plans in flight, its credits and the sequences it has."""

    link: int
    address: str
    info: WorkerInfo
    # Since when it could have reported: when it last did, or got work after having had none; seconds on the scheduler's
    # clock, without those in which the scheduler did not look.
    heard_at: float = 0.0
    # As of the last look.
    progress: Progress = Progress.MOVING
    limits: Limits = field(init=False)
    ledger: CreditLedger = field(init=False)
    window: PlanWindow = field(default_factory=PlanWindow)
    # Every sequence that may hold blocks there, those being released included.
    sequences: dict[int, Sequence] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    # Plans in a row that ran no step though there was work.
    barren_plans: int = 0
    # The stream is being ended; no more plans.
    dropped: bool = False
    # It is about to stop: nothing new for it.
    draining: bool = False
    # Sequences whose KV cache it keeps though they are off it, in host memory or in their blocks. They wait in the
    # pool's queue, or for their readers.
    kept: dict[int, Sequence] = field(default_factory=dict)
    # Keys of the blocks in its prefix cache.
    prefixes: set[int] = field(default_factory=set)
    step_times: StepTimes = field(default_factory=StepTimes)
    pace: PlanPace = field(default_factory=PlanPace)
    # Keys that sequences on their way there will add to it.
    promised: PromisedPrefixes = field(default_factory=PromisedPrefixes)
    # Sequences put there whose prefill may not be over.
    arriving: dict[int, Sequence] = field(default_factory=dict)
    # Tokens that its decodes attend to, as of the last plan.
    context_tokens: int = 0
    # How those that run there leave, as of the last look.
    leaving: LeaveRates | None = None
    # The last suspect of bringing workers down that was put there.
    suspect: Sequence | None = None
    # How many sequences of each traffic class are there, by its name.
    class_sizes: dict[str, int] = field(default_factory=dict)
    # And how many of tenants whose share of blocks is bounded.
    num_bounded: int = 0
    owed_waits: OwedWaits = field(default_factory=OwedWaits)

    def __post_init__(self) -> None:
        info = self.info
        self.limits = Limits(info.max_num_seqs, info.max_num_batched_tokens, info.block_size)
        self.ledger = CreditLedger(info.num_blocks, info.block_size)

    @property
    def running(self) -> list[Sequence]:
        """Those that take part in plans."""
        return [sequence for sequence in self.sequences.values() if sequence.state in RUNNING]

    @property
    def busy(self) -> bool:
        """Whether a report is due."""
        if self.window or self.sequences:
            return True
        return any(sequence.state is State.CANCELLING for sequence in self.kept.values())

    @property
    def kind(self) -> tuple[str, str]:
        """Workers of a model that have this in common take about as long for a step."""
        return self.info.device.partition(":")[0], self.info.dtype

    @property
    def largest_step(self) -> int:
        """Most tokens of a step that may be running."""
        return self.window.prefill_ahead + len(self.sequences)

    def longest_seconds(self, num_tokens: int, context_tokens: int) -> float | None:
        """What a step is forecast to take, or takes at times; None as long as there was none. Where steps have become
        slower, what is forecast follows but slowly."""
        times = self.step_times
        return max(times.predict(num_tokens, context_tokens) or 0.0, times.slowest) or None

    def silence(self, now: float) -> Silence:
        """For how long it has been silent, and what it may be at, by its own steps."""
        tokens = self.largest_step
        return Silence(
            seconds=now - self.heard_at if self.busy else 0.0,
            step_s=self.longest_seconds(tokens, self.context_tokens),
            foreseen=Foreseen.BY_ITSELF if self.step_times.knows(tokens) else Foreseen.BY_NOBODY,
            swap_s=self.info.num_swap_blocks * self.info.swap_block_ns * 1e-9,
        )

    @property
    def usable(self) -> bool:
        """Whether it may get something new."""
        return not (self.dropped or self.draining)

    @property
    def swap_blocks_used(self) -> int:
        return sum(sequence.kept_blocks for sequence in self.kept.values() if sequence.swapped)

    @property
    def resting(self) -> list[Sequence]:
        """Those that have their blocks there and take part in nothing."""
        return [sequence for sequence in self.kept.values() if not sequence.swapped] if self.kept else []

    @property
    def guarded(self) -> bool:
        """Whether somebody is to be alone there: a suspect that has not got a token yet."""
        suspect = self.suspect
        return suspect is not None and suspect.suspect and suspect.sequence_id in self.sequences

    @property
    def resting_blocks(self) -> int:
        """Blocks that those that rest have together; those of several outputs may share some."""
        return sum(each.kept_blocks for each in self.resting)

    @property
    def leaving_blocks(self) -> int:
        """Blocks that are free as soon as those have gone that have been told to."""
        return sum(self.ledger.reserved(each.sequence_id) for each in self.sequences.values() if each.state in LEAVING)

    def put(self, sequence: Sequence) -> None:
        """Lists one that goes there."""
        self.sequences[sequence.sequence_id] = sequence
        sequence.come_to(on_cpu=self.kind[0] == "cpu")
        name = sequence.request.traffic_class.name
        self.class_sizes[name] = self.class_sizes.get(name, 0) + 1
        self.num_bounded += sequence.request.tenant.kv_share > 0

    def let_go(self, sequence: Sequence) -> None:
        """Forgets one that has left it, and what it held."""
        del self.sequences[sequence.sequence_id]
        self.ledger.forget(sequence.sequence_id)
        name = sequence.request.traffic_class.name
        self.num_bounded -= sequence.request.tenant.kv_share > 0
        self.class_sizes[name] -= 1
        if not self.class_sizes[name]:
            del self.class_sizes[name]

    def rouse(self, sequence: Sequence) -> None:
        """One that rests is on its books again, because it has to leave."""
        del self.kept[sequence.sequence_id]
        self.put(sequence)
        self.ledger.reopen(sequence.sequence_id, sequence.kept_blocks)
        sequence.link = self.link
        sequence.lose_cache()

    def expect(self, sequence: Sequence) -> None:
        """A sequence is about to be put there."""
        self.arriving[sequence.sequence_id] = sequence
        if sequence.suspect:
            self.suspect = sequence
        if sequence.prefix_keys is not None:
            self.promised.add(sequence.sequence_id, sequence.prefix_keys.get(self.info.block_size, ()))
            sequence.prefix_keys = None

    def pending_prefills(self) -> list[tuple[tuple[float, int], int, int]]:
        """Place of each prefill there, the tokens that it has yet to compute and the slots that it lends, the last
        first. Forgets those that are over, and what they promised."""
        pending = []
        for sequence_id, sequence in list(self.arriving.items()):
            if sequence.state is State.PREFILL and self.sequences.get(sequence_id) is sequence:
                tokens = sequence.prefill_length - (sequence.computed or sequence.cached_ahead)
                pending.append((sequence.place_there, tokens, self.lent_slots(sequence)))
            else:
                del self.arriving[sequence_id]
                self.promised.settle(sequence_id)
        pending.sort(reverse=True)
        return pending

    def pending_of_class(self, name: str) -> int:
        """Tokens that prefills of a class there have yet to compute."""
        return sum(
            sequence.prefill_length - (sequence.computed or sequence.cached_ahead)
            for sequence in self.arriving.values()
            if sequence.state is State.PREFILL and sequence.request.traffic_class.name == name
        )

    def mixed_tokens(self, seconds: float, decoding: int) -> int | None:
        """Prefill tokens that keep a step with `decoding` decodes within that time; None while nothing is known."""
        tokens = self.step_times.tokens_within(seconds, self.context_tokens)
        return None if tokens is None else tokens - decoding

    @property
    def free_slots(self) -> int:
        """For the most urgent; for others, without those that a group more urgent than they lends."""
        lent = sum(map(self.lent_slots, self.arriving.values()))
        return max(0, self.limits.max_running - len(self.sequences) + lent)

    def lent_slots(self, leader: Sequence) -> int:
        """Slots that its forks do not need yet: nothing in flight can begin them."""
        return len(leader.forks) if leader.forks and self.tokens_before_end(leader) is not None else 0

    def tokens_before_end(self, leader: Sequence) -> int | None:
        """Tokens that its prefill may compute beyond what is in flight and surely not be complete; None if it may be
        complete already. Before the first report nobody knows what the prefix cache has of it."""
        if leader.state is not State.PREFILL or not leader.computed:
            return None
        left = leader.prefill_length - leader.computed - self.window.chunks_worst(leader.sequence_id)
        return left - 1 if left > 0 else None

    @property
    def max_sequence_len(self) -> int:
        """Length of the longest sequence that fits when it is alone there."""
        return min(self.info.max_model_len, self.info.num_blocks * self.info.block_size)

    def can_ever_hold(self, max_length: int) -> bool:
        """Whether a sequence of that length fits when it is alone there."""
        return max_length <= self.max_sequence_len

    def can_ever_start(self, num_tokens: int, max_length: int, num_sequences: int) -> bool:
        """Whether that many sequences fit when they are alone there, up to the first step after they were forked where
        `num_tokens` end. Later they may have to give way to each other."""
        blocks = blocks_for(min(num_tokens + 1, max_length), self.info.block_size) + num_sequences - 1
        return (
            self.can_ever_hold(max_length)
            and num_sequences <= self.limits.max_running
            and blocks <= self.info.num_blocks
        )

    def can_ever_take(self, sequence: Sequence) -> bool:
        """Whether the sequence and what waits to be forked from it can start when they are alone there."""
        return self.can_ever_start(len(sequence.token_ids), sequence.max_length, 1 + len(sequence.forks))
