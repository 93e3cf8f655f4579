"""The stream of a gateway to and from plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from tercet import errors
from tercet.failure import failure_to_proto
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.tenants.plan import MIN_WEIGHT, PlanError

from .actions import (
    Accepted,
    Account,
    CancelDone,
    CostsSoFar,
    GatewayMessage,
    PoolUpdate,
    Refused,
    SequenceEnd,
    TokenBatch,
    Unknown,
)
from .cancel_trail import CancelTrail
from .events import Begun, CancelReason, CancelReceived, Submission, TenantsChanged
from .standing import Standing
from .tenant import NamedPlan
from .wire import enum_value, sampling_from_proto

# Answers to cancels in a message. The gateway reads it in 1 ms.
MOST_DONE = 64

_COLUMNS = ("sequence_ids", "token_ids", "ends", "logprobs", "prompt_logprobs")


def tenants_from_proto(gateway: int, update: scheduler_pb2.TenantUpdate) -> TenantsChanged:
    """Raises InvalidFieldError."""
    return TenantsChanged(gateway, update.revision, tuple(_plan_from_proto(plan) for plan in update.tenants))


def _plan_from_proto(plan: scheduler_pb2.TenantPlan) -> NamedPlan:
    try:
        return NamedPlan(
            plan.tenant_id,
            classes=tuple(plan.classes),
            default_class=plan.default_class,
            weight=max(plan.weight, MIN_WEIGHT) if 0.0 < plan.weight < math.inf else 1.0,
            requests_per_minute=plan.requests_per_minute,
            tokens_per_minute=plan.tokens_per_minute,
            max_concurrent=plan.max_concurrent,
            kv_share=plan.kv_share if 0.0 < plan.kv_share < 1.0 else 0.0,
            max_context=plan.max_context,
            min_priority=plan.min_priority,
            uid=plan.uid,
        )
    except PlanError as error:
        raise errors.InvalidFieldError(f"tenant {plan.tenant_id!r}: {error}", field="tenants") from error


def submission_from_proto(submit: scheduler_pb2.Submit) -> Submission:
    return Submission(
        request_key=submit.request_key,
        request_id=submit.request_id,
        model=submit.model,
        model_revision=submit.model_revision,
        prompt_token_ids=tuple(submit.prompt_token_ids),
        max_tokens=submit.max_tokens,
        max_tokens_open=submit.max_tokens_open,
        stop_token_ids=tuple(submit.stop_token_ids),
        sampling=sampling_from_proto(submit.sampling),
        deadline_s=submit.deadline_ms / 1000 if submit.HasField("deadline_ms") else None,
        prefix_salt=submit.prefix_salt,
        n=submit.n or 1,
        traffic_class=submit.traffic_class,
        priority=submit.priority,
        tenant=submit.tenant_id,
        begun=tuple(map(_begun_from_proto, submit.begun)),
    )


def _begun_from_proto(begun: scheduler_pb2.Begun) -> Begun:
    account = begun.account
    return Begun(
        token_ids=tuple(begun.token_ids),
        ended=begun.ended,
        cached_tokens=account.cached_tokens,
        queue_s=account.queue_us / 1e6,
        gpu_us=float(account.gpu_us),
        cpu_us=float(account.cpu_us),
    )


def cancel_from_proto(gateway: int, cancel: scheduler_pb2.Cancel) -> CancelReceived:
    return CancelReceived(gateway, cancel.request_key, enum_value(CancelReason, cancel.reason))


def parted_to_proto(accounts: Iterable[tuple[int, Account]]) -> list[scheduler_pb2.Parted]:
    """Sequences that have not ended, by id."""
    return [
        scheduler_pb2.Parted(sequence_id=sequence_id, account=_account_to_proto(account))
        for sequence_id, account in accounts
    ]


def messages_to_proto(messages: Sequence[GatewayMessage], *, many: bool) -> Iterator[scheduler_pb2.SchedulerMessage]:
    """What a gateway is told that has read all before. Tokens come before the answers to cancels, of which there may be
    thousands; `many`: these come by the many."""
    # None of what goes ahead can be of a request that has its answer. Of what is not there any more the last is said
    # that was, first.
    for kind, group in groupby(sorted(messages, key=_rank), type):
        if kind is not CancelDone or not many:
            yield from map(message_to_proto, merged(list(group)))
            continue
        done = [_done_to_proto(each) for each in group if isinstance(each, CancelDone)]
        for first in range(0, len(done), MOST_DONE):
            some = scheduler_pb2.CancelsDone(done=done[first : first + MOST_DONE])
            yield scheduler_pb2.SchedulerMessage(cancels_done=some)


def _rank(message: GatewayMessage) -> int:
    return 2 if isinstance(message, Unknown) else 1 if isinstance(message, CancelDone) else 0


def merged(messages: Sequence[GatewayMessage]) -> list[GatewayMessage]:
    """The same with batches of tokens that follow each other as one, since gRPC costs by the message: those of several
    workers, and of several steps where the gateway is behind."""
    out: list[GatewayMessage] = []
    for is_tokens, group in groupby(messages, lambda message: type(message) is TokenBatch):
        batches = list(group)
        if is_tokens and len(batches) > 1:
            columns = (chain.from_iterable(getattr(each, name) for each in batches) for name in _COLUMNS)
            out.append(TokenBatch(*map(tuple, columns)))
        else:
            out += batches
    return out


def message_to_proto(message: GatewayMessage) -> scheduler_pb2.SchedulerMessage:
    if isinstance(message, TokenBatch):
        batch = scheduler_pb2.TokenBatch(
            sequence_ids=message.sequence_ids,
            token_ids=message.token_ids,
            ends=[_end_to_proto(end) for end in message.ends],
            logprobs=[sequence_pb2.TokenLogprobs.FromString(item) for _, item in message.logprobs],
            prompt_logprobs=[sequence_pb2.PromptLogprobs.FromString(item) for _, item in message.prompt_logprobs],
        )
        return scheduler_pb2.SchedulerMessage(tokens=batch)
    if isinstance(message, Accepted):
        accepted = scheduler_pb2.RequestAccepted(
            request_key=message.request_key,
            sequence_ids=message.sequence_ids,
            queue_position=message.queue_position,
            forecast_us=_to_us(message.forecast_s),
            traffic_class=message.traffic_class,
            ttft_target_us=_to_us(message.ttft_target_s),
            gap_target_us=_to_us(message.gap_target_s),
        )
        return scheduler_pb2.SchedulerMessage(accepted=accepted)
    if isinstance(message, Refused):
        refused = scheduler_pb2.RequestRefused(
            request_key=message.request_key, failure=failure_to_proto(message.failure)
        )
        return scheduler_pb2.SchedulerMessage(refused=refused)
    if isinstance(message, CancelDone):
        return scheduler_pb2.SchedulerMessage(cancel_done=_done_to_proto(message))
    if isinstance(message, CostsSoFar):
        parted = parted_to_proto(message.accounts)
        return scheduler_pb2.SchedulerMessage(costs=scheduler_pb2.CostsSoFar(sequences=parted))
    if isinstance(message, Unknown):
        return scheduler_pb2.SchedulerMessage(unknown=scheduler_pb2.UnknownRequests(request_keys=message.request_keys))
    if isinstance(message, Standing):
        return scheduler_pb2.SchedulerMessage(standing=standing_to_proto(message))
    assert isinstance(message, PoolUpdate)
    pools = [
        scheduler_pb2.Pool(
            model=pool.model,
            model_revision=pool.model_revision,
            workers_live=pool.workers_live,
            max_model_len=pool.max_model_len,
            max_sequence_len=pool.max_sequence_len,
        )
        for pool in message.pools
    ]
    return scheduler_pb2.SchedulerMessage(pools=scheduler_pb2.PoolUpdate(pools=pools, complete=message.complete))


def standing_to_proto(standing: Standing) -> scheduler_pb2.Standing:
    return scheduler_pb2.Standing(started=standing.started, term=standing.term, leaving=standing.leaving)


def _done_to_proto(done: CancelDone) -> scheduler_pb2.CancelDone:
    return scheduler_pb2.CancelDone(
        request_key=done.request_key,
        found=done.found,
        account=None if done.account is None else _account_to_proto(done.account),
        trail=None if done.trail is None else _trail_to_proto(done.trail),
    )


def _end_to_proto(end: SequenceEnd) -> scheduler_pb2.SequenceEnd:
    return scheduler_pb2.SequenceEnd(
        sequence_id=end.sequence_id,
        reason=sequence_pb2.EndReason.Name(end.reason),
        stop_token_id=end.stop_token_id,
        failure=None if end.failure is None else failure_to_proto(end.failure),
        account=_account_to_proto(end.account),
        trail=None if end.trail is None else _trail_to_proto(end.trail),
    )


def _account_to_proto(account: Account) -> scheduler_pb2.Account:
    return scheduler_pb2.Account(
        cached_tokens=account.cached_tokens,
        blocks_used=account.blocks_used,
        blocks_freed=account.blocks_freed,
        queue_us=account.queue_us,
        generated_tokens=account.generated_tokens,
        gpu_us=account.gpu_us,
        cpu_us=account.cpu_us,
    )


def _trail_to_proto(trail: CancelTrail) -> scheduler_pb2.CancelTrail:
    return scheduler_pb2.CancelTrail(
        reason=sequence_pb2.CancelReason.Name(trail.reason),
        states=[f"SEQUENCE_STATE_{state}" for state in trail.states],
        release_us=_to_us(trail.release_s),
        freed_us=_to_us(trail.freed_s),
        late_gpu_us=trail.late_gpu_us,
    )


def _to_us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
