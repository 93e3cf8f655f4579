"""A service with a fault inside; PLANTED_FAULT says which.

slow: the worker stands still for a while, once in so many steps.
leak: the worker keeps the blocks of sequences that are cancelled.
finish: the gateway says that what a stop string ended had reached its length.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from typing import Any

from tercet.cli.root import main

EACH_STEPS, PAUSE_S = 60, 4.0


def slow() -> None:
    """Plants it."""
    from worker.host_steps import HostSteps

    next_step, numbers = HostSteps.next, itertools.count(1)

    def slow_next(self: HostSteps) -> Any:
        if next(numbers) % EACH_STEPS == 0:
            time.sleep(PAUSE_S)
        return next_step(self)

    HostSteps.next = slow_next  # type: ignore[method-assign]


def leak() -> None:
    """Plants it."""
    from worker.messages import ReleaseCause, Released
    from worker.sequences import Sequences

    release, kept = Sequences.release, []

    def leaky_release(self: Sequences, sequence_ids: Iterable[int], cause: ReleaseCause) -> list[Released]:
        sequence_ids = list(sequence_ids)
        if cause is ReleaseCause.CANCEL:
            kept.extend(found.table.fork() for each in sequence_ids if (found := self.get(each)) is not None)
        return release(self, sequence_ids, cause)

    Sequences.release = leaky_release  # type: ignore[method-assign]


def finish() -> None:
    """Plants it."""
    from gateway import public_messages
    from tercet.v1 import inference_pb2 as pb

    right = public_messages._output_end

    def wrong(index: int, end: Any) -> pb.OutputEnd:
        told = right(index, end)
        if told.HasField("stop_string"):
            told.reason = pb.FINISH_REASON_LENGTH
        return told

    public_messages._output_end = wrong


if __name__ == "__main__":
    {"slow": slow, "leak": leak, "finish": finish}[os.environ["PLANTED_FAULT"]]()
    main()
