"""The simulator's worker by its old name."""

from scheduler.simulator.pool import OutOfBlocksError as OutOfBlocks
from scheduler.simulator.pool import SimulatedPool
from scheduler.simulator.sequence import SimulatedSequence
from scheduler.simulator.small import GREEDY, worker_info
from scheduler.simulator.text import VOCAB, next_token, run_alone
from scheduler.simulator.worker import SimulatedWorker

__all__ = [
    "GREEDY",
    "VOCAB",
    "OutOfBlocks",
    "SimulatedPool",
    "SimulatedSequence",
    "SimulatedWorker",
    "next_token",
    "run_alone",
    "worker_info",
]
