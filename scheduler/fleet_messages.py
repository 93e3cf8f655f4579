"""The view of the fleet as the public contract has it."""

from __future__ import annotations

from tercet.v1 import operations_pb2

from .fleet_view import FleetView


def fleet_to_proto(fleet: FleetView) -> operations_pb2.Fleet:
    return operations_pb2.Fleet(
        requests_waiting=fleet.requests_waiting,
        requests_running=fleet.requests_running,
        requests_paused=fleet.requests_paused,
        requests_finished=fleet.requests_finished,
        preemptions=fleet.preemptions,
        swaps=fleet.swaps,
        workers=[
            operations_pb2.WorkerStatus(
                address=worker.address,
                live=worker.live,
                model=worker.model,
                device=worker.device,
                sequences=worker.sequences,
                blocks_total=worker.blocks_total,
                blocks_free=worker.blocks.free,
                blocks_cached=worker.blocks.cached,
                blocks_used=worker.blocks.used,
                steps=worker.steps,
                tokens=worker.tokens,
                swap_blocks_total=worker.swap_blocks_total,
                swap_blocks_used=worker.swap_blocks_used,
                draining=worker.draining,
                late=worker.late,
                hung=worker.hung,
            )
            for worker in fleet.workers
        ],
    )
