"""The simulator's mesh by its old name."""

from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import WORKER_GRACE_S, VirtualMesh
from scheduler.simulator.small import submission

__all__ = ["WORKER_GRACE_S", "Call", "VirtualGateway", "VirtualMesh", "submission"]
