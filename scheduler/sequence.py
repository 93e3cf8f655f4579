"""A request and its sequences.

Knows token ids and counts; nothing of workers' pools, plans or streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tercet.errors import RequestError

from .cancel_trail import CancelMark
from .events import CancelReason, EndReason, Sampling, Submission
from .lifecycle import TRANSITIONS, IllegalTransitionError, State
from .outlook import Outlook
from .quota import Reservation
from .tenant import ANYONE, NamedPlan
from .traffic_class import DEFAULT_CLASS, PRIORITY_SECONDS, TrafficClass

# Workers that a sequence may lose in a row without a new token: it may be what brings them down, and the next one would
# go the same way.
MAX_LOSSES = 3


@dataclass(slots=True, eq=False)
class Request:
    """A client's ask. It ends when the last of its sequences has ended."""

    gateway: int
    submission: Submission
    # Seconds on the scheduler's clock.
    arrived_at: float
    deadline_at: float | None
    tenant: NamedPlan = ANYONE
    traffic_class: TrafficClass = DEFAULT_CLASS
    # Seconds from arrival to the first token as forecast at admission; None: nothing was known.
    forecast_s: float | None = None
    outlook: Outlook | None = None
    # Seconds of waiting after which its promise is at stake; None: as its class has it.
    due_s: float | None = None
    # What its tenant's misses to spare (promise.py) are more by for it, less below 0; None: it does not count there.
    booked: float | None = None
    # Tokens that were taken from its tenant's quota; None: it has none.
    reservation: Reservation | None = None
    # When the first of its tokens came.
    first_token_at: float | None = None
    # None any more once it has ended.
    sequences: tuple[Sequence, ...] = ()
    # Cancels of the gateway that wait for their answer.
    cancels: int = 0
    # Since when its reader is behind, None while it is not; how often it has been, and for how long before.
    paused_at: float | None = None
    pauses: int = 0
    paused_s: float = 0.0
    # The first cancel, whoever's it was.
    cancelled: CancelMark | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Unique while the gateway's stream lives."""
        return self.gateway, self.submission.request_key

    @property
    def whose(self) -> tuple[str, str]:
        """Its class and tenant."""
        return self.traffic_class.name, self.tenant.tenant

    @property
    def follows_grammar(self) -> bool:
        """Whether its worker may have to compile a grammar before the first token; how long that takes nobody knows."""
        return self.submission.sampling.has_grammar

    @property
    def priority_s(self) -> float:
        """What its priority is worth among its tenant's, in seconds of waiting; below 0: it is more urgent."""
        return PRIORITY_SECONDS * self.submission.priority

    @property
    def paused(self) -> bool:
        """Whether its reader is behind."""
        return self.paused_at is not None

    def seconds_paused(self, now: float) -> float:
        """For how long it has waited for its reader, all in all."""
        return self.paused_s + (0.0 if self.paused_at is None else now - self.paused_at)

    @property
    def live(self) -> bool:
        return any(sequence.state is not State.FINISHED for sequence in self.sequences)

    def let_go(self) -> None:
        """It is over, or was never accepted. They all point at each other: without this they would wait for the garbage
        collector, with all their tokens."""
        for sequence in self.sequences:
            sequence.disband()
        self.sequences = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation: ``token_ids`` is the prompt and all that was generated, and only grows."""

    sequence_id: int
    request: Request
    # Place in the order of arrival over all sequences; kept for life.
    arrival: int
    # Forks that wait share their leader's.
    token_ids: list[int]
    max_length: int
    # Sampling of the request with the seed of this output.
    sampling: Sampling
    # Smaller is served earlier: when its promise is broken or its patience at an end, and the arrival. Kept for life.
    claim: tuple[float, int]
    # For one without a promise: its claim since it was its turn to start.
    claim_in_turn: tuple[float, int] | None = None
    # Its turn on the worker that it was dealt to last.
    turn_there: tuple[float, int] | None = None
    state: State = State.QUEUED
    # Set while it waits to be forked where the prefill of that one ends; it goes wherever the leader goes.
    leader: Sequence | None = field(default=None, repr=False)
    # Those that wait to be forked from this one.
    forks: tuple[Sequence, ...] = ()
    # The worker stream that keeps its KV cache though it is off the worker: in so many blocks, of host memory if
    # `swapped`, else where it was, and then it rests.
    kept_on: int | None = None
    kept_blocks: int = 0
    swapped: bool = False
    # The worker stream it is on, and the one it is or was on last, unless that may still have to let it go.
    link: int | None = None
    last_link: int | None = None
    # len(token_ids) when it was last put on a worker: what has to be in the KV cache before the next token.
    prefill_length: int = 0
    # In prefill: tokens in the KV cache as the worker last confirmed. Once it decodes they are all but the last.
    computed: int = 0
    # First plan on this stream that may make it decode, and last plan that carried its join. 0: none.
    join_first: int = 0
    join_last: int = 0
    # Tokens generated after the cancel: nobody wants them, but they are in the KV cache.
    wasted: int = 0
    # Its part of the time of the steps that computed tokens of it, in microseconds: of each as of its tokens.
    gpu_us: float = 0.0
    # Of that, what it had before it came to the worker that it is or was on last, and what of this on workers without a
    # GPU; whether that worker has none.
    gpu_us_elsewhere: float = 0.0
    cpu_us_elsewhere: float = 0.0
    on_cpu: bool = False
    # Prompt tokens found in the prefix cache when it was first prefilled.
    cached_tokens: int = 0
    # When it first went to a worker, in seconds on the scheduler's clock.
    started_at: float | None = None
    # How often it was put on a worker, preempted, of that with its blocks moved to host memory, and taken away from a
    # worker that was about to stop.
    placements: int = 0
    preemptions: int = 0
    swaps: int = 0
    moves: int = 0
    # While PREEMPTED: its worker is about to stop.
    moving: bool = False
    # How often its worker was lost with no new token since the time before, and how long it was at the last time.
    losses: int = 0
    length_at_loss: int = 0
    # How long it was when it was last preempted; 0: never.
    length_at_preemption: int = 0
    # And when it last came back from host memory: until its next token, nothing of it counts as held.
    length_at_return: int = 0
    # While it waits: keys of its blocks by their size (prefix_index.py), once somebody asked.
    prefix_keys: dict[int, tuple[int, ...]] | None = field(default=None, repr=False)
    # Tokens that the prefix cache of the worker it is dealt to is believed to have.
    cached_ahead: int = 0
    # Its promise was at stake when it was dealt, ahead of the turn of its class: that is not charged to the class.
    hurried: bool = False
    # When it was dealt it was owed to its tenant, who had asked for less than the others got.
    owed_turn: bool = False
    # Prompt tokens that were not charged, since a prefix cache had them; and how long it was when what it had got was
    # last charged.
    uncharged_prompt: int = 0
    charged_length: int = 0
    # The weight of its tenant at which its prompt is charged.
    prompt_weight: float = 1.0
    # Tokens of its prompt that were charged and are not computed yet.
    charged_ahead: int = 0
    # Why it is being cancelled; None in `cancel_failure` if the gateway asked.
    cancel_reason: CancelReason | None = None
    cancel_failure: RequestError | None = None
    # When it alone was stopped.
    stopped: CancelMark | None = None
    end: SequenceOutcome | None = field(default=None, repr=False)

    @property
    def prompt_length(self) -> int:
        return len(self.request.submission.prompt_token_ids)

    @property
    def generated(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def sampling_left(self) -> Sampling:
        """What a worker still has to know: its prompt's logprobs have all come before its first token."""
        return replace(self.sampling, num_prompt_logprobs=None) if self.generated else self.sampling

    @property
    def shielded(self) -> bool:
        """Whether it has got no token since it was preempted: it is not to lose its work twice for nothing."""
        return len(self.token_ids) == self.length_at_preemption

    @property
    def group(self) -> tuple[Sequence, ...]:
        """It and those that wait to be forked from it: they are placed and taken away together."""
        return (self, *self.forks)

    @property
    def urgency(self) -> tuple[float, int]:
        """Its place among its tenant's of the class, smaller first. Kept for life."""
        return self.claim[0] + self.request.priority_s, self.claim[1]

    @property
    def turn(self) -> tuple[float, int]:
        """Its claim among those that workers compute, whoever's. No priority is in it: that passes nobody else's."""
        return self.claim_in_turn or self.claim

    @property
    def place_there(self) -> tuple[float, int]:
        """Its place in the order of service on its worker, smaller first."""
        return self.turn_there or self.turn

    def have_turn(self, now: float, promise_s: float) -> None:
        """It may start. However long one without a promise has waited, its prefill lets promises pass that are to be
        kept within `promise_s` seconds, and no others: so it has an end."""
        if self.claim_in_turn is None and self.request.traffic_class.ttft is None:
            for each in self.group:
                each.claim_in_turn = max(each.claim[0], now + promise_s), each.claim[1]

    @property
    def suspect(self) -> bool:
        """Whether the next loss of a worker ends it. It gets that worker for itself, so that only the guilty end."""
        return self.losses == MAX_LOSSES - 1 and len(self.token_ids) == self.length_at_loss

    @property
    def queue_seconds(self) -> float:
        """From admission to the start of prefill; 0 while it has not started."""
        return 0.0 if self.started_at is None else self.started_at - self.request.arrived_at

    @property
    def cpu_us(self) -> float:
        """Of `gpu_us`, that on workers without a GPU."""
        return self.cpu_us_elsewhere + (self.gpu_us - self.gpu_us_elsewhere if self.on_cpu else 0.0)

    def come_to(self, *, on_cpu: bool) -> None:
        """What it gets from now on is of a worker with a GPU, or of one without."""
        self.cpu_us_elsewhere, self.gpu_us_elsewhere, self.on_cpu = self.cpu_us, self.gpu_us, on_cpu

    def become(self, state: State) -> None:
        """Raises IllegalTransitionError if the table has no such arrow."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(self.sequence_id, self.state, state)
        self.state = state

    def place(self, link: int, now: float) -> None:
        """Puts it on a worker: QUEUED to PREFILL."""
        self.become(State.PREFILL)
        self.link = self.last_link = link
        self.prefill_length = len(self.token_ids)
        self.placements += 1
        if self.started_at is None:
            self.started_at = now

    @property
    def pausable(self) -> bool:
        """Whether its reader is behind with something: before its first token there is nothing to read."""
        return self.request.paused and self.generated > 0

    @property
    def resting(self) -> bool:
        """Whether a worker keeps its blocks for it, in no plan and on no account."""
        return self.kept_on is not None and not self.swapped

    def keep(self, link: int, blocks: int, *, swapped: bool) -> None:
        """Its worker has let it go, and keeps its KV cache."""
        self.kept_on, self.kept_blocks, self.swapped = link, blocks, swapped

    def lose_cache(self) -> None:
        """Nobody keeps its KV cache any more."""
        self.kept_on, self.kept_blocks, self.swapped = None, 0, False

    def resume(self, link: int) -> None:
        """Goes on where the worker has kept its KV cache: QUEUED to DECODE."""
        assert self.kept_on == link
        self.become(State.DECODE)
        self.link = link
        self.prefill_length = len(self.token_ids)
        self.computed = self.prefill_length - 1
        self.placements += 1
        if self.swapped:
            self.length_at_return = len(self.token_ids)
        self.lose_cache()

    def part(self) -> None:
        """The leader's prefill is complete: each goes its own way. For the leader."""
        for fork in self.forks:
            fork.token_ids = list(self.token_ids)
        self.disband()

    def disband(self) -> None:
        """The group is no more, and none of it gets another token. For the leader."""
        for fork in self.forks:
            fork.leader = None
        self.forks = ()

    def leave(self) -> None:
        """It goes its own way before the others of its group; the first fork of a leader leads those that stay."""
        if self.leader is not None:
            self.leader.forks = tuple(each for each in self.leader.forks if each is not self)
            self.leader = None
        elif self.forks:
            (heir, *others), self.forks = self.forks, ()
            heir.leader, heir.forks = None, tuple(others)
            for each in others:
                each.leader = heir

    def note_loss(self) -> int:
        """Its worker was lost. Returns how often that has happened in a row without a new token between."""
        self.losses = 1 if len(self.token_ids) > self.length_at_loss else self.losses + 1
        self.length_at_loss = len(self.token_ids)
        return self.losses

    def requeue(self) -> None:
        """Takes it off its worker, to continue from prompt + generated tokens anywhere."""
        self.become(State.QUEUED)
        self.link = None
        self.computed = 0
        self.moving = False
        self.join_first = self.join_last = 0


@dataclass(frozen=True, slots=True)
class SequenceOutcome:
    """How a sequence ended."""

    reason: EndReason
    stop_token_id: int = 0
    failure: RequestError | None = None
    blocks_used: int = 0
    blocks_freed: int = 0
