"""An executor that is driven without its thread, and what it says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

import torch

from tests.worker.eager_graphs import eager_graph_steps
from tests.worker.recall_model import CONFIG, RecallModel
from worker.executor import Executor
from worker.grammars import Grammars
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import (
    Attach,
    Chunk,
    Command,
    Ended,
    Event,
    KvEvents,
    NewSequence,
    Plan,
    PlanDone,
    Released,
    StepResult,
)
from worker.steps import Steps
from worker.swap_space import SwapSpace

CPU = torch.device("cpu")


def obey_all(executor: Executor) -> None:
    """Obeys what was submitted, also what waits for steps that are on their way."""
    executor.obey()
    while len(executor._mailbox):
        executor.step()
        executor.obey()


class SteppedExecutor:
    """Commands take effect, and plans run to their ends, within `run`; the pools are checked after each step."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, num_swap_blocks: int = 0, caching: bool = True,
        model: RecallModel | None = None, captured: int | None = None, swap_space: type[SwapSpace] = SwapSpace,
        grammars: Grammars | None = None, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """`captured` is the seed of a device that computes runs by itself; None: the host computes each step."""
        self.model = model or RecallModel()
        self.kv_cache = KVCache(CONFIG, num_blocks, block_size, torch.float32, CPU, caching)
        self.swap_space = swap_space(self.kv_cache, num_swap_blocks)
        self.executor = Executor(
            self._steps(captured),
            self.kv_cache,
            self.swap_space,
            grammars=grammars,
            check_every_step=True,
            clock=clock,
        )
        self.events: list[Event] = []
        self._plan_seq = 0
        self.obey(Attach(self.events.append))

    def _steps(self, captured: int | None) -> Steps:
        if captured is None:
            return HostSteps(self.model, self.kv_cache)  # type: ignore[arg-type]
        rng = random.Random(captured)
        return eager_graph_steps(self.model, self.kv_cache, rng, max_rows=32)  # type: ignore[arg-type]

    def obey(self, *commands: Command) -> list[Event]:
        """Obeys the commands, and runs no step but what was on its way; the events."""
        first = len(self.events)
        for command in commands:
            self.executor.submit(command)
        obey_all(self.executor)
        return self.events[first:]

    def plan(self, num_steps: int, **fields: object) -> Plan:
        """The next plan."""
        self._plan_seq += 1
        return Plan(self._plan_seq, num_steps, **fields)  # type: ignore[arg-type]

    def run(self, *commands: Command) -> list[Event]:
        """Obeys the commands and steps until all plans are done; the events."""
        first = len(self.events)
        self.obey(*commands)
        # A plan that finds nothing to do takes a call to end.
        for _ in range(sum(command.num_steps + 1 for command in commands if isinstance(command, Plan))):
            self.executor.step()
        num_done = sum(isinstance(event, PlanDone) for event in self.events[first:])
        assert num_done == sum(isinstance(command, Plan) for command in commands)
        return self.events[first:]


def tokens_of(events: Iterable[Event], sequence_id: int) -> list[int]:
    """The tokens that a sequence got."""
    out = []
    for event in events:
        if isinstance(event, StepResult):
            out += [t for s, t in zip(event.sequence_ids, event.token_ids, strict=True) if s == sequence_id]
    return out


def steps_of(events: Iterable[Event]) -> list[StepResult]:
    """The steps that ran."""
    return [event for event in events if isinstance(event, StepResult)]


def ended_of(events: Iterable[Event]) -> dict[int, Ended]:
    """The sequences that ended by themselves; each may do so once."""
    ended = [item for event in events if isinstance(event, StepResult) for item in event.ended]
    assert len({item.sequence_id for item in ended}) == len(ended)
    return {item.sequence_id: item for item in ended}


def released_of(events: Iterable[Event]) -> list[Released]:
    """The answers to releases."""
    return [event for event in events if isinstance(event, Released)]


def kv_events_of(events: Iterable[Event]) -> list[KvEvents]:
    """What was told of the prefix cache."""
    return [event for event in events if isinstance(event, KvEvents)]


def alone(spec: NewSequence) -> list[int]:
    """The tokens of a sequence that runs by itself: its prompt in one chunk, one step a plan, nothing cached."""
    bench = SteppedExecutor(num_blocks=256, caching=False)
    events = bench.obey(spec)
    while spec.sequence_id not in ended_of(events):
        chunk = Chunk(spec.sequence_id, len(spec.token_ids))
        events += bench.run(bench.plan(1, chunks=(chunk,), join=(spec.sequence_id,)))
    return tokens_of(events, spec.sequence_id)
