"""Between tercet.mesh.v1 messages and the worker's own values. The only file that knows both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from tercet.grammar.grammar import Grammar, Syntax
from tercet.mesh.v1 import sequence_pb2, worker_pb2

from .messages import (
    BlockCounts,
    Chunk,
    Command,
    Draining,
    Ended,
    EndReason,
    Event,
    Fork,
    KvEvents,
    NewSequence,
    Penalties,
    Plan,
    PlanDone,
    PromptLogprobs,
    Release,
    ReleaseCause,
    Released,
    Rest,
    Resting,
    Resume,
    Sampling,
    StepResult,
    Structure,
    TokenLogprobs,
)

# Of the likeliest tokens. What the kernels can find.
MAX_LOGPROBS = 20

_CAUSES = {
    worker_pb2.RELEASE_CAUSE_CANCEL: ReleaseCause.CANCEL,
    worker_pb2.RELEASE_CAUSE_PREEMPT: ReleaseCause.PREEMPT,
    worker_pb2.RELEASE_CAUSE_SWAP: ReleaseCause.SWAP,
}
_SYNTAXES = {
    sequence_pb2.GRAMMAR_SYNTAX_JSON_SCHEMA: Syntax.JSON_SCHEMA,
    sequence_pb2.GRAMMAR_SYNTAX_REGEX: Syntax.REGEX,
    sequence_pb2.GRAMMAR_SYNTAX_EBNF: Syntax.EBNF,
    sequence_pb2.GRAMMAR_SYNTAX_STRUCTURAL_TAG: Syntax.STRUCTURAL_TAG,
}
_CAUSES_OUT = {cause: value for value, cause in _CAUSES.items()}
_REASONS_OUT = {
    EndReason.STOP: sequence_pb2.END_REASON_STOP,
    EndReason.LENGTH: sequence_pb2.END_REASON_LENGTH,
    EndReason.FAILED: sequence_pb2.END_REASON_FAILED,
}


def decode_command(message: worker_pb2.WorkerCommand, limits: worker_pb2.Hello) -> Command:
    """The command in a message, checked against what the worker has said of itself.

    Raises ValueError, with what is wrong, if it breaks the protocol. A sequence that cannot be run is no such breach:
    it comes with its `problem` set and fails alone. The kernels trust what passes here.
    """
    kind = message.WhichOneof("command")
    if kind == "plan":
        plan = message.plan
        if not plan.num_steps:
            raise ValueError(f"plan {plan.plan_seq}: num_steps must be at least 1")
        if len({chunk.sequence_id for chunk in plan.chunks}) < len(plan.chunks):
            raise ValueError(f"plan {plan.plan_seq}: two chunks of one sequence")
        return Plan(
            plan.plan_seq,
            plan.num_steps,
            tuple(Chunk(chunk.sequence_id, chunk.num_tokens) for chunk in plan.chunks),
            tuple(plan.join),
            plan.revoke_through,
        )
    if kind == "new_sequence":
        new = message.new_sequence
        if len({new.sequence_id, *(fork.sequence_id for fork in new.forks)}) <= len(new.forks):
            raise ValueError(f"sequence {new.sequence_id}: it and its forks have an id twice")
        sampling = new.sampling
        return NewSequence(
            new.sequence_id,
            tuple(new.token_ids),
            new.max_length,
            frozenset(new.stop_token_ids),
            Sampling(
                sampling.temperature,
                sampling.top_p,
                # All of the vocabulary is no limit; a larger number would not fit the kernel's 32 bits.
                sampling.top_k if sampling.top_k < limits.vocab_size else 0,
                sampling.min_p,
                sampling.seed,
                _penalties(sampling.penalties) if sampling.HasField("penalties") else None,
                sampling.num_logprobs if sampling.HasField("num_logprobs") else None,
                sampling.num_prompt_logprobs if sampling.HasField("num_prompt_logprobs") else None,
                _structure(new) if sampling.HasField("grammar") else None,
            ),
            new.prefix_salt,
            _problem(new, limits),
            tuple(Fork(fork.sequence_id, fork.seed) for fork in new.forks),
        )
    if kind == "release":
        cause = _CAUSES.get(message.release.cause, ReleaseCause.CANCEL)
        return Release(tuple(message.release.sequence_ids), cause)
    if kind == "resume":
        return Resume(tuple(message.resume.sequence_ids))
    if kind == "rest":
        return Rest(tuple(message.rest.sequence_ids))
    raise ValueError(f"unexpected command: {kind}")


def _problem(new: worker_pb2.NewSequence, limits: worker_pb2.Hello) -> str | None:
    """Why a sequence cannot be run on this worker, if so."""
    if not new.token_ids:
        return "it has no tokens"
    if not len(new.token_ids) < new.max_length <= limits.max_model_len:
        bounds = f"above its {len(new.token_ids)} tokens and at most {limits.max_model_len}"
        return f"max_length must be {bounds}, is {new.max_length}"
    if max(new.token_ids) >= limits.vocab_size:
        return f"token id {max(new.token_ids)} is not below {limits.vocab_size}"
    sampling = new.sampling
    sane = 0 <= sampling.temperature < math.inf and 0 <= sampling.min_p <= 1 and 0 <= sampling.top_p <= 1
    if not sane or max(sampling.num_logprobs, sampling.num_prompt_logprobs) > MAX_LOGPROBS:
        return "sampling parameters are out of range"
    if sampling.HasField("grammar") and (problem := _problem_of_grammar(new, limits)) is not None:
        return problem
    return _problem_of_penalties(new, limits) if sampling.HasField("penalties") else None


def _structure(new: worker_pb2.NewSequence) -> Structure:
    given = new.sampling.grammar
    syntax = _SYNTAXES.get(given.syntax, Syntax.EBNF)
    return Structure(Grammar(syntax, given.text, new.prefix_salt), given.prompt_tokens, tuple(given.end_ids))


def _problem_of_grammar(new: worker_pb2.NewSequence, limits: worker_pb2.Hello) -> str | None:
    given = new.sampling.grammar
    if given.syntax not in _SYNTAXES:
        return f"a grammar of syntax {given.syntax} is not known"
    if given.prompt_tokens > len(new.token_ids):
        return f"{given.prompt_tokens} tokens of prompt are too many"
    if not given.end_ids or max(given.end_ids) >= limits.vocab_size:
        return f"a grammar needs token ids below {limits.vocab_size} to end with"
    return None


def _penalties(given: sequence_pb2.Penalties) -> Penalties:
    return Penalties(
        prompt_tokens=given.prompt_tokens,
        repetition=given.repetition,
        frequency=given.frequency,
        presence=given.presence,
        bias=tuple(zip(given.biased_ids, given.biases, strict=False)),
        allowed_ids=tuple(given.allowed_ids) or None,
        min_tokens=given.min_tokens,
        bad=_cut(given.bad_ids, given.bad_lengths),
    )


def _cut(ids: Iterable[int], lengths: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Sequences of so many ids, one behind the other."""
    left = iter(ids)
    return tuple(tuple(islice(left, length)) for length in lengths)


def _problem_of_penalties(new: worker_pb2.NewSequence, limits: worker_pb2.Hello) -> str | None:
    given, vocab_size = new.sampling.penalties, limits.vocab_size
    if given.prompt_tokens > len(new.token_ids) or given.min_tokens > limits.max_model_len:
        return f"{given.prompt_tokens} tokens of prompt and at least {given.min_tokens} of output are too many"
    if len(given.biased_ids) != len(given.biases):
        return f"{len(given.biased_ids)} tokens have {len(given.biases)} biases"
    if sum(given.bad_lengths) != len(given.bad_ids) or 0 in given.bad_lengths:
        return f"{len(given.bad_ids)} tokens are cut into sequences of {list(given.bad_lengths)[:8]}"
    if max((*given.biased_ids, *given.allowed_ids, *given.bad_ids), default=0) >= vocab_size:
        return f"a token id of its penalties is not below {vocab_size}"
    values = (given.repetition, given.frequency, given.presence, *given.biases)
    # The smallest number to divide by.
    sane = given.repetition >= 2**-126 and all(map(math.isfinite, values))
    return None if sane else "penalties are out of range"


def encode_event(event: Event) -> worker_pb2.WorkerEvent:
    """The message of an event."""
    match event:
        case StepResult():
            step = worker_pb2.StepResult(
                plan_seq=event.plan_seq,
                step=event.step,
                sequence_ids=event.sequence_ids,
                token_ids=event.token_ids,
                prefills=[
                    worker_pb2.PrefillProgress(
                        sequence_id=item.sequence_id, num_computed=item.num_computed, num_cached=item.num_cached
                    )
                    for item in event.prefills
                ],
                ended=[_encode_ended(item) for item in event.ended],
                blocks=_encode_counts(event.blocks),
                step_us=event.step_us,
                logprobs=[_encode_logprobs(sequence_id, item) for sequence_id, item in event.logprobs],
                prompt_logprobs=map(_encode_prompt_logprobs, event.prompt_logprobs),
            )
            return worker_pb2.WorkerEvent(step=step)
        case PlanDone():
            done = worker_pb2.PlanDone(
                plan_seq=event.plan_seq,
                steps_run=event.steps_run,
                revoked=event.revoked,
                blocks=_encode_counts(event.blocks),
                step_us=event.step_us,
            )
            return worker_pb2.WorkerEvent(plan_done=done)
        case Resting():
            resting = worker_pb2.Resting(
                sequence_id=event.sequence_id, found=event.found, blocks=_encode_counts(event.blocks)
            )
            return worker_pb2.WorkerEvent(resting=resting)
        case KvEvents():
            kv = worker_pb2.KvEvents(reset=event.reset, removed=event.removed, stored=event.stored)
            return worker_pb2.WorkerEvent(kv=kv)
        case Draining():
            return worker_pb2.WorkerEvent(draining=worker_pb2.Draining())
        case Released():
            released = worker_pb2.Released(
                sequence_id=event.sequence_id,
                cause=_CAUSES_OUT[event.cause],
                found=event.found,
                blocks_used=event.blocks_used,
                blocks_freed=event.blocks_freed,
                blocks=_encode_counts(event.blocks),
                swapped=event.swapped,
            )
            return worker_pb2.WorkerEvent(released=released)


def _encode_ended(item: Ended) -> worker_pb2.Ended:
    out = worker_pb2.Ended(
        sequence_id=item.sequence_id,
        reason=_REASONS_OUT[item.reason],
        stop_token_id=item.stop_token_id,
        blocks_used=item.blocks_used,
        blocks_freed=item.blocks_freed,
    )
    if item.failure is not None:
        out.failure.reason = item.failure.reason
        out.failure.message = item.failure.message
        out.failure.metadata.update(item.failure.metadata)
    return out


def _encode_logprobs(sequence_id: int, item: TokenLogprobs) -> sequence_pb2.TokenLogprobs:
    return sequence_pb2.TokenLogprobs(
        sequence_id=sequence_id, logprob=item.logprob, top_ids=item.top_ids, top_logprobs=item.top_logprobs
    )


def _encode_prompt_logprobs(item: PromptLogprobs) -> sequence_pb2.PromptLogprobs:
    return sequence_pb2.PromptLogprobs(
        sequence_id=item.sequence_id,
        first=item.first,
        logprobs=item.logprobs,
        top_ids=item.top_ids,
        top_logprobs=item.top_logprobs,
    )


def _encode_counts(counts: BlockCounts) -> worker_pb2.BlockCounts:
    return worker_pb2.BlockCounts(free=counts.free, cached=counts.cached, used=counts.used)
