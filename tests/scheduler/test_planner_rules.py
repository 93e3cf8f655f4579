"""All rules of the planner at once, on random arguments."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from planned import Row, candidate, columns

from scheduler.first_step import Candidate
from scheduler.plan_length import MAX_PLAN_SECONDS, MAX_STEPS, least_steps
from scheduler.planner import NOTHING, Credits, Forecast, make_plan
from scheduler.policy import LEAST_PREFILL_TOKENS, Limits, Policy
from scheduler.step_time import CAUTIOUS_TOKENS


def in_turn(rows: Sequence[Row], waiting: Sequence[Candidate]) -> list[int]:
    """The keys of all as they are served: newcomers as given, others before the first of these that is less urgent."""
    keys = [each.sequence_id for each in waiting]
    for row in sorted(rows, key=lambda row: row.key, reverse=True):
        behind = [index for index, each in enumerate(waiting) if each.place > (float(row.key), row.key)]
        follower = keys.index(waiting[behind[0]].sequence_id) if behind else len(keys)
        # Those that are less urgent were put in before it, and come behind it.
        before = [keys.index(other.key) for other in rows if other.key > row.key]
        keys.insert(min([follower, *before]), row.key)
    return keys


def blocks(tokens: int, max_length: int, size: int) -> int:
    return -(-min(tokens, max_length) // size)


@st.composite
def running_sequences(draw: st.DrawFn, size: int) -> list[Row]:
    rows = []
    for key in range(draw(st.integers(0, 6))):
        tokens = draw(st.integers(1, 40))
        max_length = tokens + draw(st.integers(0, 20))
        left = draw(st.integers(0, 40))
        forks = draw(st.integers(0, 2)) if left else 0
        reserved = (1 + forks) * blocks(tokens, max_length, size) + draw(st.integers(-1, 1))
        steps_left = draw(st.integers(0, max_length))
        before_end = draw(st.none() | st.integers(0, left - 1)) if forks else None
        rows.append(Row(key, left, tokens, max_length, steps_left, reserved, draw(st.booleans()), forks, before_end))
    return rows


@settings(max_examples=400)
@given(data=st.data())
def test_every_decision_keeps_the_rules(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 4, 16]))
    rows = data.draw(running_sequences(size))
    count = sum(1 + row.forks for row in rows)
    lent = sum(row.lent for row in rows)
    limits = Limits(
        max_num_seqs=data.draw(st.integers(max(1, count - lent), 24)),
        max_num_batched_tokens=data.draw(st.integers(max(1, count - lent), 80)),
        block_size=size,
    )
    policy = Policy(data.draw(st.integers(0, 40)), data.draw(st.sampled_from([0, 1, 7])))
    forecast = Forecast(
        data.draw(st.integers(0, 50)),
        data.draw(st.sampled_from([None, 0.0005, 0.002, 0.04, 1.0])),
        data.draw(st.sampled_from([None, -3, 5, 40])),
        data.draw(st.booleans()),
    )
    # Prefills have the urgencies 0, 1, 2, ...: newcomers are more urgent than some, and less than others.
    waiting = [
        candidate(
            100 + index,
            tokens,
            tokens + data.draw(st.integers(1, 30)),
            place,
            members=1 if kept else data.draw(st.integers(1, 3)),
            kept=kept,
        )
        for index, (place, tokens, kept) in enumerate(
            data.draw(st.lists(st.tuples(st.integers(-1, 6), st.integers(1, 50), st.booleans()), max_size=4))
        )
    ]
    # Fairness may have put them in any order.
    waiting = data.draw(st.permutations(waiting))
    releasing = data.draw(st.integers(0, 2))
    settled = not releasing and data.draw(st.booleans())
    account = Credits(data.draw(st.integers(-5, 120)), count + releasing, settled)
    lone = len(rows) == 1 and not releasing and (not rows[0].forks or data.draw(st.booleans()))
    running = columns(*rows, lone=lone)
    decision = make_plan(running, waiting, account, limits, policy, forecast)
    assert decision == make_plan(running, waiting, account, limits, policy, forecast)

    by_key = {row.key: row for row in rows}
    starts = {each.sequence_id: each for each in waiting[: len(decision.start)]}
    assert tuple(starts) == decision.start
    started = sum(each.members for each in starts.values())
    chunks = dict(decision.chunks)
    assert len(chunks) == len(decision.chunks)
    # Each takes its slots when it is its turn; a group that has lent them is not complete before they are free.
    slots = limits.max_running - (account.sequences - lent)
    owed = set()
    place = {key: index for index, key in enumerate(in_turn(rows, waiting))}
    served_or_running = [key for key in place if key in by_key or key in starts]
    for key in served_or_running:
        slots -= by_key[key].lent if key in by_key else starts[key].members
        if key in starts:
            assert slots >= 0
        elif by_key[key].lent and slots < 0:
            owed.add(key)
            assert chunks.get(key, 0) <= (by_key[key].before_end or 0)
    growth = sum((1 + row.forks) * blocks(row.tokens + 1, row.max_length, size) - row.reserved for row in rows)
    if decision.shortage:
        assert decision.num_steps == 0
        assert settled
        assert not lone
        assert decision.shortage == growth - account.available
        return
    if not decision.num_steps:
        assert decision == NOTHING
        short = growth > account.available
        idle = not any(row.left or row.steps_left for row in rows if row.key not in owed)
        assert (short and not settled and not lone) or idle
        fits = waiting and waiting[0].members <= limits.max_running
        assert not (idle and fits and not account.sequences), "an empty worker starts what waits"
        return
    # A fixed length is obeyed, an adaptive one has its bounds.
    assert 1 <= decision.num_steps <= (policy.num_steps or MAX_STEPS)
    if not policy.num_steps and forecast.step_seconds and decision.num_steps > 1:
        assert decision.num_steps * forecast.step_seconds <= MAX_PLAN_SECONDS
        assert decision.num_steps <= max(forecast.quiet_steps, least_steps(forecast.step_seconds))
    # Worst case within credits; what is alone may always do what admission has checked.
    grown = sum(
        (1 + row.forks) * blocks(row.tokens + decision.num_steps, row.max_length, size) - row.reserved for row in rows
    )
    grown += sum(each.blocks(decision.num_steps, size) for each in starts.values())
    first_alone = not account.sequences and len(starts) == 1
    assert grown <= account.available or ((lone or first_alone) and (count + started == 1 or decision.num_steps == 1))
    # Token budget of the first step, whoever decodes in it.
    deciding = sum((1 + row.forks - row.lent) - (row.key in chunks) for row in rows)
    deciding += sum(each.members - (each.sequence_id in chunks) for each in starts.values())
    assert sum(chunks.values()) + deciding <= limits.max_num_batched_tokens
    known = CAUTIOUS_TOKENS if forecast.mixed_tokens is None else max(LEAST_PREFILL_TOKENS, forecast.mixed_tokens)
    cap = policy.max_prefill_tokens or known
    if any(not row.left for row in rows):
        assert sum(chunks.values()) <= cap
    for key, tokens in chunks.items():
        assert 1 <= tokens <= (by_key[key].left if key in by_key else starts[key].tokens)
        assert key in by_key or not starts[key].kept
    # Prefill that is left over makes the plan short.
    if decision.num_steps > 1:
        assert all(row.left <= chunks.get(row.key, 0) for row in rows if row.key not in owed)
        assert not owed & chunks.keys()
        assert all(each.kept or chunks[key] == each.tokens for key, each in starts.items())
    # Joins: the new ones, and those in doubt that get a chunk.
    assert set(decision.join) == set(starts) | {key for key in chunks if key in by_key and not by_key[key].joined}
    # Served in turn, and the first of all that has room advances.
    assert [place[key] for key in chunks] == sorted(place[key] for key in chunks)
    prefilling = [row.key for row in rows if row.left and (row.key not in owed or row.key in chunks)]
    served = sorted([*prefilling, *starts], key=place.__getitem__)
    if served:
        assert served[0] in chunks or starts[served[0]].kept
    # Nobody takes what one before it still needs.
    missing = [
        key
        for key in served
        if key in chunks and key not in owed
        if chunks[key] < (by_key[key].left if key in by_key else starts[key].tokens)
    ]
    for key in missing:
        behind = [each for each in served[served.index(key) + 1 :] if each in chunks]
        assert all(each in by_key and chunks[each] == 1 for each in behind)
    # From the first that is passed by one that gets a token now, prefill is capped; so is what it leaves to newcomers.
    newest, before, passed = 0, 0, False
    for key in (key for key in place if key not in by_key or by_key[key].left):
        # Its key is the place in the order of arrival, too.
        if key < newest:
            passed = True
            assert sum(chunks.values()) <= max(before, cap)
            break
        before += chunks.get(key, 0)
        if key in served and key not in missing and key not in owed:
            newest = max(newest, key)
    # A newcomer that was left behind lacks a slot, a token of the step, or blocks.
    if len(waiting) > len(starts):
        left_out = waiting[len(starts)]
        turn = [key for key in served_or_running if place[key] < place[left_out.sequence_id]]
        slots = limits.max_running - (account.sequences - lent)
        slots -= sum(by_key[key].lent if key in by_key else starts[key].members for key in turn)
        size_now = left_out.blocks(1, size) + count + started
        spare = account.available - growth - sum(each.blocks(1, size) for each in starts.values())
        full = sum(chunks.values()) + deciding + left_out.members > limits.max_num_batched_tokens
        capped = not left_out.kept and (passed or any(not row.left for row in rows))
        assert left_out.members > slots or full or capped or size_now > spare
