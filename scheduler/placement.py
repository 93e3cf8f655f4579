"""Deals waiting sequences to the workers of their pool. Pure; knows no plans."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial

from .fair_order import due
from .kv_shares import KvShares
from .policy import Policy
from .pool import Pool
from .preemption import Holder
from .prefix_index import cached_run, chain_keys
from .progress import LATE_SECONDS, late_after
from .room import Room
from .sequence import Sequence
from .worker import Worker

# What computing a prompt token weighs against one that others on the worker wait for: it delays those who come after,
# too, and can be saved where the cache has it.
COMPUTED_WEIGHT = 2
# What a sequence on the worker weighs, in prompt tokens: it takes a part of every step.
SEQUENCE_WEIGHT = 16

# (worker, sequence, keys dealt to that worker just now) -> tokens of the sequence that its prefix cache has, or will
# have when what was sent there is prefilled.
CachedTokens = Callable[[Worker, Sequence, Container[int]], int]


@dataclass(frozen=True, slots=True)
class Deal:
    """By the worker's link: which waiting sequences it should try to start, in order of service; and who on it makes
    room for one whose promise is at stake. `awaited` are classes in which somebody waits, or is likely to come, to whom
    something is owed."""

    newcomers: Mapping[int, list[Sequence]]
    yielding: Mapping[int, list[Holder]]
    awaited: frozenset[str]


NOTHING_DEALT = Deal({}, {}, frozenset())


def cached_tokens(worker: Worker, sequence: Sequence, dealt: Container[int]) -> int:
    """How many of the sequence's first tokens need not be computed on the worker."""
    if sequence.sampling_left.num_prompt_logprobs is not None:
        return 0
    if not worker.prefixes and worker.tokens:
        # It has worked and has nothing to show: it keeps no prefix cache, and promises to it are worth nothing.
        return 0
    size = worker.info.block_size
    if sequence.prefix_keys is None:
        sequence.prefix_keys = {}
    keys = sequence.prefix_keys.get(size)
    if keys is None:
        keys = chain_keys(sequence.request.submission.prefix_salt, sequence.token_ids, size)
        sequence.prefix_keys[size] = keys
    return size * cached_run(keys, worker.prefixes, worker.promised, dealt)


def late(worker: Worker, now: float) -> bool:
    """Whether the worker is silent for so long that it may hang."""
    # The time first: this is asked for every worker and plan.
    if now - worker.heard_at <= LATE_SECONDS:
        return False
    silence = worker.silence(now)
    return silence.seconds > late_after(silence)


def deal(pool: Pool, policy: Policy, now: float, lookup: CachedTokens = cached_tokens) -> Deal:
    """What of the queue goes where, in the order of service.

    No more than the next plans can start, so that the queue is not dealt anew with every event. Each goes where the
    least work lies before its first token: what its prefix there leaves to compute, what more urgent ones there have to
    compute, and what runs there. Order is strict: when the next sequence finds no free slot or too few credits, the
    workers it may go to take nothing that is behind it, or a long one could starve; unless that is of a lower rank, and
    the one ahead not due. Tenants at their share of blocks are passed over, and so are classes that have on every
    worker what they may have there. One that finds too few blocks gets them from those that rest and those that have
    grown beyond their tenants' shares; one whose promise is at stake, and that finds no room, gets it from higher
    ranks.

    One whose KV cache a worker keeps may go there only. A suspect of bringing workers down goes to an empty worker
    only, for which one of them takes nobody else, and stays alone there until it has got a token. What a worker
    can run that is not late waits for such a one.
    """
    workers = [worker for worker in pool.workers.values() if not worker.dropped]
    pressing = _pressing(pool, workers, now)
    rooms = {worker.link: Room.of(worker, policy, pool.waiting) for worker in workers if pressing or worker.free_slots}
    if all(room.shut for room in rooms.values()):
        return NOTHING_DEALT
    kept = sum(len(worker.kept) for worker in pool.workers.values())
    punctual = {worker.link for worker in workers if not late(worker, now)}
    dealt: dict[int, list[Sequence]] = {}
    order, shares = pool.order(now, sum(room.slots for room in rooms.values())), KvShares(pool)
    most = kept + sum(room.taken * pressing + room.slots for room in rooms.values())
    promise_s = pool.waiting.longest_promise
    while most > 0 and (sequence := order.next) is not None:
        sequence.have_turn(now, promise_s)
        for room in rooms.values():
            room.turn_to(sequence, order.served, reserved=order.reserved)
        opening = any(room.opens(sequence) for room in rooms.values())
        stake = pressing and order.due and sequence.request.traffic_class.ttft is not None
        if not opening and (not stake or all(room.shut or room.tokens_left <= 0 for room in rooms.values())):
            order.pass_class()
            continue
        if shares.full(sequence):
            order.pass_tenant()
            continue
        places = [room for room in rooms.values() if pool.may_go(room.worker, sequence)]
        if len(punctual) < len(pool.workers) and any(pool.may_go(pool.workers[link], sequence) for link in punctual):
            places = [room for room in places if room.worker.link in punctual]
        allowed = [room for room in places if room.takes_class(sequence)]
        if places and not allowed:
            order.pass_class()
            continue
        most -= 1
        fitting = [room for room in allowed if room.has_place(sequence) and room.has_blocks(sequence)]
        if not fitting:
            made = _make_room(allowed, sequence, partial(Room.who_returns, sequence=sequence, beyond=shares.beyond()))
            if not made and stake:
                made = _make_room(allowed, sequence, partial(Room.who_yields, sequence=sequence, now=now))
            if not made:
                _hold(allowed, sequence, due=order.due)
            order.advance()
            continue
        best, computed = _cheapest(fitting, sequence, lookup)
        if best.tokens_left > 0:
            best.take(sequence, computed)
            sequence.hurried, sequence.owed_turn = order.hurried, order.owed_turn
            shares.take(sequence)
            dealt.setdefault(best.worker.link, []).append(sequence)
            order.advance(computed)
        else:
            # Its turn comes there with one of the next steps, sooner than elsewhere.
            best.shut = True
            order.advance()
    yielding = {link: room.yielding for link, room in rooms.items() if room.yielding}
    return Deal(dealt, yielding, frozenset(order.awaited))


def _pressing(pool: Pool, workers: list[Worker], now: float) -> bool:
    """Whether some promise is at stake for which somebody who runs could make room. May say yes too often."""
    queues = pool.waiting.classes
    ranks = [each.traffic_class.rank for each in queues.values() if each.waiting and each.traffic_class.ttft]
    if not ranks:
        return False
    lowest = min(ranks)
    yielding = {
        name for name, each in queues.items() if each.traffic_class.preemptible and each.traffic_class.rank > lowest
    }
    if not any(not yielding.isdisjoint(worker.class_sizes) for worker in workers):
        return False
    return any(each.traffic_class.ttft and due(each, now) for each in queues.values())


def _make_room(places: list[Room], sequence: Sequence, who_leaves: Callable[[Room], tuple[Holder, ...] | None]) -> bool:
    """Where the least is lost, if anywhere, the sequence will have room. Whether it will."""
    best: tuple[tuple[int, int], Room, tuple[Holder, ...]] | None = None
    if not sequence.suspect:
        for room in places:
            victims = who_leaves(room)
            if victims is not None:
                loss = sum(len(each.sequence_ids) for each in victims), sum(each.lost_tokens for each in victims)
                if best is None or loss < best[0]:
                    best = loss, room, victims
    if best is None:
        return False
    best[1].make_room(sequence, best[2])
    return True


def _hold(places: list[Room], sequence: Sequence, *, due: bool) -> None:
    """Keeps what has to become free for the sequence: all that it may take; for suspects the one worker that is likely
    to be empty the soonest."""
    if not sequence.suspect:
        for room in places:
            room.hold(sequence, due=due)
    elif places:
        # Nobody is dealt to it any more, so that the next suspect waits for the same one.
        min(places, key=lambda room: room.taken).shut = True


def _cheapest(rooms: list[Room], sequence: Sequence, lookup: CachedTokens) -> tuple[Room, int]:
    """The worker with the least work before the sequence's first token, and the tokens to be computed there."""
    length = 0 if sequence.kept_on is not None else len(sequence.token_ids)
    if len(rooms) == 1:
        # Nothing to choose: the keys of its prefix need not be made.
        return rooms[0], length
    best: tuple[tuple[int, int, int], Room, int] | None = None
    for room in rooms:
        computed = max(1, length - lookup(room.worker, sequence, room.keys))
        cost = COMPUTED_WEIGHT * computed + room.tokens_ahead + SEQUENCE_WEIGHT * room.taken
        # Of equals the one whose cache would lose least: prefixes spread over the workers' caches.
        rating = (cost, -room.available, room.worker.ledger.counts.cached)
        if best is None or rating < best[0]:
            best = rating, room, computed
    assert best is not None
    return best[1], best[2]
