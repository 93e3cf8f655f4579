"""What a gateway's stream carries: batches of tokens that wait for the same gateway become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.actions import Accepted, Account, CancelDone, GatewayMessage, SequenceEnd, TokenBatch, Unknown
from scheduler.events import EndReason, TenantsChanged
from scheduler.gateway_messages import MOST_DONE, merged, message_to_proto, messages_to_proto, tenants_from_proto
from scheduler.tenant import NamedPlan
from tercet import errors
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.tenants.plan import TenantPlan

ids = st.integers(1, 5)


def _end(sequence_id: int) -> SequenceEnd:
    return SequenceEnd(sequence_id, EndReason.LENGTH, 0, None, Account(0, 1, 1, 0))


batches = st.builds(
    lambda tokens, ends: TokenBatch(tuple(i for i, _ in tokens), tuple(t for _, t in tokens), tuple(map(_end, ends))),
    st.lists(st.tuples(ids, st.integers(0, 9)), max_size=4),
    st.lists(ids, max_size=2),
)
others = st.one_of(st.builds(CancelDone, ids), st.builds(lambda key: Accepted(key, (key,), 0), ids))


def _tokens(messages: Sequence[GatewayMessage]) -> list[tuple[int, int]]:
    return [
        pair
        for message in messages
        if isinstance(message, TokenBatch)
        for pair in zip(message.sequence_ids, message.token_ids, strict=True)
    ]


@given(st.lists(st.one_of(batches, others), max_size=8))
def test_merging_loses_nothing_and_keeps_the_order(messages: list[GatewayMessage]) -> None:
    out = merged(messages)
    assert _tokens(out) == _tokens(messages)
    ends = [[end for each in some if isinstance(each, TokenBatch) for end in each.ends] for some in (out, messages)]
    assert ends[0] == ends[1]
    # What is no batch of tokens stays, with the tokens before it before it.
    kinds = [each for each in out if not isinstance(each, TokenBatch)]
    assert kinds == [each for each in messages if not isinstance(each, TokenBatch)]
    for each in kinds:
        here, there = out.index(each), messages.index(each)
        assert _tokens(out[:here]) == _tokens(messages[:there])


def test_logprobs_are_merged_in_the_order_of_their_tokens() -> None:
    items = [sequence_pb2.TokenLogprobs(sequence_id=1, logprob=-i).SerializeToString() for i in range(3)]
    batches = [TokenBatch((1,), (10 + i,), (), ((1, item),)) for i, item in enumerate(items)]
    (batch,) = merged(batches)
    assert isinstance(batch, TokenBatch)
    assert batch.logprobs == tuple((1, item) for item in items)
    assert [item.logprob for item in message_to_proto(batch).tokens.logprobs] == [0, -1, -2]


def test_batches_that_follow_each_other_are_one_message() -> None:
    first, second = TokenBatch((1, 2), (10, 20), (_end(2),)), TokenBatch((1,), (11,), ())
    done = CancelDone(7)
    assert merged([first, second, done, first]) == [TokenBatch((1, 2, 1), (10, 20, 11), (_end(2),)), done, first]
    proto = message_to_proto(merged([first, second])[0]).tokens
    assert list(proto.sequence_ids) == [1, 2, 1]
    assert list(proto.token_ids) == [10, 20, 11]
    assert [end.sequence_id for end in proto.ends] == [2]


def test_what_a_gateway_says_of_tenants_is_taken_over() -> None:
    said = scheduler_pb2.TenantPlan(
        tenant_id="a",
        classes=["rag", "batch"],
        default_class="batch",
        weight=2.5,
        requests_per_minute=3,
        tokens_per_minute=2**40,
        max_concurrent=4,
        kv_share=0.5,
        max_context=100,
        min_priority=-7,
        uid="u1",
    )
    silent = scheduler_pb2.TenantPlan(tenant_id="b")
    event = tenants_from_proto(5, scheduler_pb2.TenantUpdate(revision=9, tenants=[said, silent]))
    plan = NamedPlan(
        "a",
        classes=("rag", "batch"),
        default_class="batch",
        weight=2.5,
        requests_per_minute=3,
        tokens_per_minute=2**40,
        max_concurrent=4,
        kv_share=0.5,
        max_context=100,
        min_priority=-7,
        uid="u1",
    )
    assert all(getattr(plan, limit.name) != limit.default for limit in fields(TenantPlan))
    assert event == TenantsChanged(5, 9, (plan, NamedPlan("b", min_priority=0)))


@pytest.mark.parametrize("said", [{"classes": ["no name"]}, {"min_priority": 101}, {"tokens_per_minute": 2**53 + 1}])
def test_a_plan_that_no_store_can_hold_is_an_error_of_its_gateway(said: dict[str, Any]) -> None:
    update = scheduler_pb2.TenantUpdate(tenants=[scheduler_pb2.TenantPlan(tenant_id="a", **said)])
    with pytest.raises(errors.InvalidFieldError, match="tenant 'a': ") as caught:
        tenants_from_proto(1, update)
    assert caught.value.metadata["field"] == "tenants"


@pytest.mark.parametrize(
    ("weight", "share"), [(0.0, 0.0), (-1.0, -1.0), (float("nan"), float("nan")), (float("inf"), 1.5)]
)
def test_numbers_that_make_no_sense_are_no_limits(weight: float, share: float) -> None:
    said = scheduler_pb2.TenantPlan(tenant_id="a", weight=weight, kv_share=share)
    (plan,) = tenants_from_proto(1, scheduler_pb2.TenantUpdate(tenants=[said])).plans
    assert (plan.weight, plan.kv_share) == (1.0, 0.0)


def test_a_weight_of_next_to_nothing_is_a_small_one() -> None:
    said = scheduler_pb2.TenantPlan(tenant_id="a", weight=1e-300)
    (plan,) = tenants_from_proto(1, scheduler_pb2.TenantUpdate(tenants=[said])).plans
    assert plan.weight == 1e-3


unknowns = st.builds(lambda key: Unknown((key,)), ids)


@given(st.lists(st.one_of(batches, others, unknowns), max_size=8), st.booleans())
def test_tokens_come_before_the_answers_to_cancels_and_nothing_is_lost(
    messages: list[GatewayMessage], many: bool
) -> None:
    protos = list(messages_to_proto(messages, many=many))
    kinds = [proto.WhichOneof("message") for proto in protos]
    ranks = {"tokens": 0, "accepted": 0, "cancel_done": 1, "cancels_done": 1, "unknown": 2}
    assert [ranks[kind] for kind in kinds] == sorted(ranks[kind] for kind in kinds)
    assert ("cancel_done" if many else "cancels_done") not in kinds
    tokens = [(batch.sequence_ids, batch.token_ids) for proto in protos if (batch := proto.tokens)]
    assert [pair for columns in tokens for pair in zip(*columns, strict=True)] == _tokens(messages)
    done = [each for proto in protos for each in (proto.cancel_done, *proto.cancels_done.done) if each.request_key]
    assert [each.request_key for each in done] == [
        each.request_key for each in messages if isinstance(each, CancelDone)
    ]


def test_answers_to_many_cancels_are_few_messages() -> None:
    protos = list(messages_to_proto([CancelDone(key) for key in range(2 * MOST_DONE + 1)], many=True))
    assert [len(proto.cancels_done.done) for proto in protos] == [MOST_DONE, MOST_DONE, 1]
