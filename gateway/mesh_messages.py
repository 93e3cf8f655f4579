"""The messages of tercet.mesh.v1 as plain values, and back."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from tercet.failure import failure_from_proto
from tercet.grammar.grammar import Grammar, Syntax
from tercet.ledger.row import Targets
from tercet.mesh.v1 import scheduler_pb2 as pb
from tercet.mesh.v1 import sequence_pb2
from tercet.tenants.directory import Directory
from tercet.tracing.context import TraceContext
from tercet.tracing.messages import context_to_proto

from .cancel import CancelOrigin, CancelTrail
from .penalties import NO_PENALTIES, Penalties
from .prompt_logprobs import PromptPart
from .refusal_counts import RefusalKind
from .sequence_end import Account, EndReason, SequenceEnd
from .token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one model and revision, as the scheduler last said. Lengths of 0 are not known."""

    workers_live: int
    max_model_len: int
    # What the KV cache of a worker has room for, within its context.
    max_sequence_len: int


@dataclass(frozen=True, slots=True)
class Submission:
    """A request in tokens, every parameter resolved; the fields of tercet.mesh.v1.Submit."""

    tenant: str
    request_id: str
    model: str
    model_revision: str
    prompt_token_ids: list[int]
    max_tokens: int
    # The client left it open.
    max_tokens_open: bool
    stop_token_ids: tuple[int, ...]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    penalties: Penalties
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    deadline_ms: int | None
    n: int
    traffic_class: str
    priority: int
    prefix_salt: bytes
    grammar: Grammar | None = None
    # Where the grammar is complete.
    grammar_end_ids: tuple[int, ...] = ()
    # That it is part of.
    trace: TraceContext | None = None


_SYNTAXES: Mapping[Syntax, sequence_pb2.GrammarSyntax] = {
    Syntax.JSON_SCHEMA: sequence_pb2.GRAMMAR_SYNTAX_JSON_SCHEMA,
    Syntax.REGEX: sequence_pb2.GRAMMAR_SYNTAX_REGEX,
    Syntax.EBNF: sequence_pb2.GRAMMAR_SYNTAX_EBNF,
    Syntax.STRUCTURAL_TAG: sequence_pb2.GRAMMAR_SYNTAX_STRUCTURAL_TAG,
}

CANCEL_REASONS: Mapping[CancelOrigin, sequence_pb2.CancelReason] = {
    CancelOrigin.CLIENT: sequence_pb2.CANCEL_REASON_CLIENT,
    CancelOrigin.DEADLINE: sequence_pb2.CANCEL_REASON_DEADLINE,
    CancelOrigin.STOP_STRING: sequence_pb2.CANCEL_REASON_STOP_STRING,
    CancelOrigin.OPERATOR: sequence_pb2.CANCEL_REASON_OPERATOR,
    CancelOrigin.REVOKED: sequence_pb2.CANCEL_REASON_OPERATOR,
    CancelOrigin.SLOW_CONSUMER: sequence_pb2.CANCEL_REASON_SLOW_CONSUMER,
    CancelOrigin.SHUTDOWN: sequence_pb2.CANCEL_REASON_SHUTDOWN,
    CancelOrigin.SCHEDULER_LOST: sequence_pb2.CANCEL_REASON_LINK_LOST,
    CancelOrigin.ORPHAN: sequence_pb2.CANCEL_REASON_ORPHAN,
    CancelOrigin.FAULT: sequence_pb2.CANCEL_REASON_FAULT,
}
# Back again; of two causes with one reason the first.
_ORIGINS: Mapping[int, CancelOrigin] = {reason: origin for origin, reason in reversed(list(CANCEL_REASONS.items()))}

_END_REASONS: Mapping[int, EndReason] = {
    sequence_pb2.END_REASON_STOP: EndReason.STOP,
    sequence_pb2.END_REASON_LENGTH: EndReason.LENGTH,
    sequence_pb2.END_REASON_CANCELLED: EndReason.CANCELLED,
    sequence_pb2.END_REASON_FAILED: EndReason.FAILED,
}

# A state that this version does not know is its number.
_STATES: Mapping[int, str] = {
    value.number: value.name.removeprefix("SEQUENCE_STATE_") for value in pb.SequenceState.DESCRIPTOR.values
}


def to_submit(key: int, submission: Submission) -> pb.Submit:
    """The message of a submission; `key` names it on the stream."""
    return pb.Submit(
        request_key=key,
        request_id=submission.request_id,
        model=submission.model,
        model_revision=submission.model_revision,
        prompt_token_ids=submission.prompt_token_ids,
        max_tokens=submission.max_tokens,
        max_tokens_open=submission.max_tokens_open,
        stop_token_ids=submission.stop_token_ids,
        sampling=sequence_pb2.Sampling(
            temperature=submission.temperature,
            top_p=submission.top_p,
            top_k=submission.top_k,
            min_p=submission.min_p,
            seed=submission.seed,
            penalties=_to_penalties(submission),
            num_logprobs=submission.num_logprobs,
            num_prompt_logprobs=submission.num_prompt_logprobs,
            grammar=_to_grammar(submission),
        ),
        deadline_ms=submission.deadline_ms,
        n=submission.n,
        traffic_class=submission.traffic_class,
        priority=submission.priority,
        prefix_salt=submission.prefix_salt,
        tenant_id=submission.tenant,
        trace_context=context_to_proto(submission.trace),
    )


def to_tenant_update(directory: Directory) -> pb.TenantUpdate:
    """What all tenants may do; no word of their keys."""
    plans = [
        pb.TenantPlan(
            tenant_id=tenant.name,
            uid=tenant.uid,
            classes=tenant.plan.classes,
            default_class=tenant.plan.default_class,
            weight=tenant.plan.weight,
            requests_per_minute=tenant.plan.requests_per_minute,
            tokens_per_minute=tenant.plan.tokens_per_minute,
            max_concurrent=tenant.plan.max_concurrent,
            kv_share=tenant.plan.kv_share,
            max_context=tenant.plan.max_context,
            min_priority=tenant.plan.min_priority,
        )
        for tenant in directory.tenants.values()
    ]
    return pb.TenantUpdate(revision=directory.revision, tenants=plans)


def to_refusal_counts(counts: Mapping[RefusalKind, int]) -> pb.RefusalCounts:
    """What was refused here."""
    return pb.RefusalCounts(
        counts=[
            pb.RefusalCount(tenant_id=kind.tenant, traffic_class=kind.traffic_class, reason=kind.reason, count=count)
            for kind, count in counts.items()
        ]
    )


def _to_penalties(submission: Submission) -> sequence_pb2.Penalties | None:
    penalties = submission.penalties
    if penalties == NO_PENALTIES:
        return None
    return sequence_pb2.Penalties(
        prompt_tokens=len(submission.prompt_token_ids),
        repetition=penalties.repetition,
        frequency=penalties.frequency,
        presence=penalties.presence,
        biased_ids=[token_id for token_id, _ in penalties.bias],
        biases=[bias for _, bias in penalties.bias],
        allowed_ids=penalties.allowed_ids,
        min_tokens=penalties.min_tokens,
        bad_ids=[token_id for each in penalties.bad_ids for token_id in each],
        bad_lengths=map(len, penalties.bad_ids),
    )


def _to_grammar(submission: Submission) -> sequence_pb2.Grammar | None:
    grammar = submission.grammar
    if grammar is None:
        return None
    return sequence_pb2.Grammar(
        prompt_tokens=len(submission.prompt_token_ids),
        syntax=_SYNTAXES[grammar.syntax],
        text=grammar.text,
        end_ids=submission.grammar_end_ids,
    )


def to_token_logprobs(item: sequence_pb2.TokenLogprobs) -> TokenLogprobs:
    """Logprobs at one token's place."""
    return TokenLogprobs(item.logprob, tuple(item.top_ids), tuple(item.top_logprobs))


def to_prompt_part(item: sequence_pb2.PromptLogprobs) -> PromptPart:
    """Logprobs of tokens of a prompt."""
    return PromptPart(item.first, array("f", item.logprobs), array("I", item.top_ids), array("f", item.top_logprobs))


def to_sequence_end(end: pb.SequenceEnd) -> SequenceEnd:
    """The scheduler's last word on a sequence."""
    reason = _END_REASONS.get(end.reason, EndReason.FAILED)
    return SequenceEnd(
        reason=reason,
        account=to_account(end.account),
        stop_token_id=end.stop_token_id if reason is EndReason.STOP else None,
        failure=failure_from_proto(end.failure) if end.HasField("failure") else None,
        trail=to_trail(end.trail) if end.HasField("trail") else None,
    )


def to_trail(trail: pb.CancelTrail) -> CancelTrail:
    """What became of a cancel."""
    return CancelTrail(
        origin=_ORIGINS.get(trail.reason, CancelOrigin.FAULT),
        states=tuple(_STATES.get(state, str(state)) for state in trail.states),
        release_s=trail.release_us / 1e6 if trail.HasField("release_us") else None,
        freed_s=trail.freed_us / 1e6,
        late_gpu_s=trail.late_gpu_us / 1e6,
    )


def to_account(account: pb.Account) -> Account:
    """What a sequence held."""
    return Account(
        cached_tokens=account.cached_tokens,
        blocks_used=account.blocks_used,
        blocks_freed=account.blocks_freed,
        queue_s=account.queue_us / 1e6,
        generated_tokens=account.generated_tokens,
        gpu_s=account.gpu_us / 1e6,
        cpu_s=account.cpu_us / 1e6,
    )


def to_targets(accepted: pb.RequestAccepted) -> Targets:
    """The class of an accepted request, and what that promises."""
    return Targets(
        accepted.traffic_class,
        accepted.ttft_target_us / 1e6 if accepted.HasField("ttft_target_us") else None,
        accepted.gap_target_us / 1e6 if accepted.HasField("gap_target_us") else None,
    )


def to_pools(update: pb.PoolUpdate) -> dict[tuple[str, str], Pool]:
    """What can be served, by model name and revision."""
    return {
        (pool.model, pool.model_revision): Pool(pool.workers_live, pool.max_model_len, pool.max_sequence_len)
        for pool in update.pools
    }
