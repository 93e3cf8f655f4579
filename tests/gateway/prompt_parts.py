"""Logprobs of a prompt as a scheduler sends them."""

from __future__ import annotations

from typing import Any

from tercet.mesh.v1 import scheduler_pb2, sequence_pb2


async def send_part(scheduler: Any, part: sequence_pb2.PromptLogprobs) -> None:
    """One message of the fake scheduler with nothing else in it."""
    batch = scheduler_pb2.TokenBatch(prompt_logprobs=[part])
    await scheduler.send(scheduler_pb2.SchedulerMessage(tokens=batch))
