"""Between tercet.mesh.v1 messages and the values that a simulated worker takes and gives: the worker's side of them."""

from __future__ import annotations

from scheduler.actions import NewSequence, Plan, Release, ReleaseCause, Rest, Resume, WorkerCommand
from scheduler.events import (
    BlockCounts,
    Ended,
    Event,
    KvChanged,
    PlanEnded,
    SequenceReleased,
    SequenceRests,
    StepReported,
    WorkerDraining,
    WorkerInfo,
)
from scheduler.wire import sampling_from_proto
from tercet.failure import failure_to_proto
from tercet.mesh.v1 import worker_pb2


def decode_command(message: worker_pb2.WorkerCommand) -> WorkerCommand:
    """The command in a message. Raises ValueError for one that only the first on a stream may be."""
    kind = message.WhichOneof("command")
    if kind == "plan":
        plan = message.plan
        chunks = tuple((chunk.sequence_id, chunk.num_tokens) for chunk in plan.chunks)
        return Plan(plan.plan_seq, plan.num_steps, chunks, tuple(plan.join), plan.revoke_through)
    if kind == "new_sequence":
        new = message.new_sequence
        return NewSequence(
            sequence_id=new.sequence_id,
            token_ids=tuple(new.token_ids),
            max_length=new.max_length,
            stop_token_ids=tuple(new.stop_token_ids),
            sampling=sampling_from_proto(new.sampling),
            prefix_salt=new.prefix_salt,
            forks=tuple((fork.sequence_id, fork.seed) for fork in new.forks),
        )
    if kind == "release":
        return Release(tuple(message.release.sequence_ids), ReleaseCause(message.release.cause))
    if kind == "resume":
        return Resume(tuple(message.resume.sequence_ids))
    if kind == "rest":
        return Rest(tuple(message.rest.sequence_ids))
    raise ValueError(f"unexpected command {kind}")


def encode_event(event: Event) -> worker_pb2.WorkerEvent:
    """The message of an event that a worker may send."""
    if isinstance(event, StepReported):
        step = worker_pb2.StepResult(
            plan_seq=event.plan_seq,
            step=event.step,
            sequence_ids=event.sequence_ids,
            token_ids=event.token_ids,
            prefills=[
                worker_pb2.PrefillProgress(
                    sequence_id=each.sequence_id, num_computed=each.num_computed, num_cached=each.num_cached
                )
                for each in event.prefills
            ],
            ended=map(_encode_ended, event.ended),
            blocks=_encode_counts(event.blocks),
            step_us=event.step_us,
        )
        return worker_pb2.WorkerEvent(step=step)
    if isinstance(event, PlanEnded):
        done = worker_pb2.PlanDone(
            plan_seq=event.plan_seq,
            steps_run=event.steps_run,
            revoked=event.revoked,
            blocks=_encode_counts(event.blocks),
            step_us=event.step_us,
        )
        return worker_pb2.WorkerEvent(plan_done=done)
    if isinstance(event, SequenceReleased):
        released = worker_pb2.Released(
            sequence_id=event.sequence_id,
            found=event.found,
            blocks_used=event.blocks_used,
            blocks_freed=event.blocks_freed,
            blocks=_encode_counts(event.blocks),
            swapped=event.swapped,
        )
        return worker_pb2.WorkerEvent(released=released)
    if isinstance(event, SequenceRests):
        resting = worker_pb2.Resting(
            sequence_id=event.sequence_id, found=event.found, blocks=_encode_counts(event.blocks)
        )
        return worker_pb2.WorkerEvent(resting=resting)
    if isinstance(event, KvChanged):
        return worker_pb2.WorkerEvent(
            kv=worker_pb2.KvEvents(reset=event.reset, removed=event.removed, stored=event.stored)
        )
    assert isinstance(event, WorkerDraining)
    return worker_pb2.WorkerEvent(draining=worker_pb2.Draining())


def encode_hello(info: WorkerInfo) -> worker_pb2.WorkerEvent:
    """The first message of a worker."""
    hello = worker_pb2.Hello(
        worker_id=info.worker_id,
        epoch=info.epoch,
        model=info.model,
        model_revision=info.model_revision,
        device=info.device,
        dtype=info.dtype,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        num_swap_blocks=info.num_swap_blocks,
        swap_block_ns=info.swap_block_ns,
    )
    return worker_pb2.WorkerEvent(hello=hello)


def _encode_ended(ended: Ended) -> worker_pb2.Ended:
    return worker_pb2.Ended(
        sequence_id=ended.sequence_id,
        reason=int(ended.reason),  # type: ignore[arg-type]
        stop_token_id=ended.stop_token_id,
        failure=None if ended.failure is None else failure_to_proto(ended.failure),
        blocks_used=ended.blocks_used,
        blocks_freed=ended.blocks_freed,
    )


def _encode_counts(counts: BlockCounts) -> worker_pb2.BlockCounts:
    return worker_pb2.BlockCounts(free=counts.free, cached=counts.cached, used=counts.used)
