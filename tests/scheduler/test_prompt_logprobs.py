"""Requests for logprobs of their prompts: dealt as if nothing were cached, asked until the first token, passed on."""

from __future__ import annotations

from dataclasses import replace

from outcomes import prepared, settle
from pools import pool_of, wait_for, worker

from scheduler.actions import NewSequence
from scheduler.events import Submission
from scheduler.placement import cached_tokens
from scheduler.prefix_index import chain_keys
from scheduler.simulator.small import GREEDY, submission, worker_info

PREFIX = list(range(40))
ASKING = replace(GREEDY, num_prompt_logprobs=2)


def asking(key: int, num_tokens: int = 3, **changes: object) -> Submission:
    return submission(key, [1] * num_tokens, sampling=ASKING, **changes)


def test_a_cached_prefix_saves_them_nothing() -> None:
    pool = pool_of(worker(1), worker(2))
    pool.workers[2].prefixes.update(chain_keys(b"", [*PREFIX, 0], 4))
    plain, asks = wait_for(pool, 1, [*PREFIX, 7]), wait_for(pool, 2, [*PREFIX, 7], sampling=ASKING)
    assert cached_tokens(pool.workers[2], plain, ()) == 40
    assert cached_tokens(pool.workers[2], asks, ()) == 0
    # Behind its first token they have all come.
    asks.token_ids.append(9)
    assert cached_tokens(pool.workers[2], asks, ()) == 40


def test_a_worker_is_asked_until_a_token_came() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], num_steps=1)
    call = mesh.submit(gateway, asking(1, 20))
    # In mid-prompt, and again behind some tokens, its worker is lost.
    moments = (
        lambda: any(each.computed for each in mesh.core.workers[0].sequences.values()),
        lambda: bool(call.tokens),
    )
    for reached in moments:
        while not reached():
            mesh.run(until=mesh.now + 0.001)
        (lost,) = mesh.workers.values()
        mesh.lose_worker(lost)
        mesh.attach_worker()
    settle(mesh)
    asked = [each.command.sampling for each in mesh.sent if isinstance(each.command, NewSequence)]
    assert [each.num_prompt_logprobs for each in asked] == [2, 2, None]
    assert len(call.tokens) == 8
