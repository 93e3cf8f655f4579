"""What a mesh says of itself, as plain dataclasses, and those of their protos: its models, workers and cancels."""

from __future__ import annotations

from dataclasses import dataclass

from tercet.ledger.row import Cancellation, Cancelled
from tercet.v1 import models_pb2, operations_pb2


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model."""

    name: str
    served_names: tuple[str, ...]
    revision: str
    max_model_len: int
    vocab_size: int
    ready: bool
    chat: bool


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as the scheduler sees it; blocks_total = free + cached + used."""

    address: str
    live: bool
    model: str
    device: str
    sequences: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    steps: int
    tokens: int
    # Blocks that host memory can take from preempted sequences, and those taken.
    swap_blocks_total: int = 0
    swap_blocks_used: int = 0
    draining: bool = False
    # It has work and is silent for much longer than its step should take; and it was given up for that.
    late: bool = False
    hung: bool = False

    @property
    def condition(self) -> str:
        """What is not as it should be, or about to end; empty for most."""
        if not self.live:
            return "hung" if self.hung else "not connected"
        return ", ".join(name for name, holds in (("draining", self.draining), ("late", self.late)) if holds)


@dataclass(frozen=True, slots=True)
class FleetInfo:
    """The state of the mesh."""

    requests_waiting: int
    requests_running: int
    requests_finished: int
    preemptions: int
    workers: tuple[WorkerInfo, ...]
    # Of the preemptions, those that moved blocks to host memory.
    swaps: int = 0
    # Since their clients do not read.
    requests_paused: int = 0


def from_model(model: models_pb2.Model) -> ModelInfo:
    """A served model."""
    return ModelInfo(
        name=model.name,
        served_names=tuple(model.served_names),
        revision=model.revision,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        ready=model.ready,
        chat=model.chat,
    )


def from_cancellation(each: operations_pb2.Cancellation) -> Cancelled:
    """A cancel."""
    return Cancelled(
        each.request_id,
        each.tenant,
        each.traffic_class,
        Cancellation(
            output_index=each.output_index if each.HasField("output_index") else None,
            origin=each.origin,
            cancelled_at=each.cancelled_at,
            states=tuple(each.states),
            release_s=each.release_seconds if each.HasField("release_seconds") else None,
            freed_s=each.freed_seconds if each.HasField("freed_seconds") else None,
            done_s=each.done_seconds if each.HasField("done_seconds") else None,
            blocks_freed=each.blocks_freed if each.HasField("blocks_freed") else None,
            wasted_tokens=each.wasted_tokens if each.HasField("wasted_tokens") else None,
            wasted_gpu_s=each.wasted_gpu_seconds if each.HasField("wasted_gpu_seconds") else None,
        ),
    )


def from_fleet(fleet: operations_pb2.Fleet) -> FleetInfo:
    """The state of the mesh."""
    workers = tuple(
        WorkerInfo(
            address=worker.address,
            live=worker.live,
            model=worker.model,
            device=worker.device,
            sequences=worker.sequences,
            blocks_total=worker.blocks_total,
            blocks_free=worker.blocks_free,
            blocks_cached=worker.blocks_cached,
            blocks_used=worker.blocks_used,
            steps=worker.steps,
            tokens=worker.tokens,
            swap_blocks_total=worker.swap_blocks_total,
            swap_blocks_used=worker.swap_blocks_used,
            draining=worker.draining,
            late=worker.late,
            hung=worker.hung,
        )
        for worker in fleet.workers
    )
    return FleetInfo(
        requests_waiting=fleet.requests_waiting,
        requests_running=fleet.requests_running,
        requests_finished=fleet.requests_finished,
        preemptions=fleet.preemptions,
        workers=workers,
        swaps=fleet.swaps,
        requests_paused=fleet.requests_paused,
    )
