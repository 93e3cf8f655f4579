"""An executor that is stepped by hand over captured steps, with a model that remembers its KV cache alone."""

from __future__ import annotations

import random

import torch

from tests.worker.eager_graphs import EagerLoop, eager_graph_steps
from tests.worker.recall_model import CONFIG, RecallModel
from tests.worker.stepped_executor import obey_all
from worker.executor import Executor
from worker.kv_cache import KVCache
from worker.messages import Attach, Command, Event, PlanDone
from worker.pipeline import Pipeline

S = 8


class CapturedBench:
    """The pools, blocks of S tokens, are checked after each step."""

    def __init__(self, num_blocks: int = 64, seed: int = 0, max_rows: int = 16) -> None:
        self.kv_cache = KVCache(CONFIG, num_blocks, S, torch.float32, torch.device("cpu"))
        self.model = RecallModel()
        self.steps = eager_graph_steps(self.model, self.kv_cache, random.Random(seed), max_rows)  # type: ignore[arg-type]
        self.executor = Executor(self.steps, self.kv_cache, check_every_step=True)
        self.events: list[Event] = []
        self.obey(Attach(self.events.append))

    @property
    def loop(self) -> EagerLoop:
        return self.steps._loop  # type: ignore[return-value]

    @property
    def works(self) -> Pipeline:
        return self.executor._works

    def obey(self, *commands: Command) -> None:
        """As far as nothing of it waits for a step."""
        self._submit(*commands)
        self.executor.obey()

    def obey_all(self, *commands: Command) -> None:
        """With the steps that some of it waits for."""
        self._submit(*commands)
        obey_all(self.executor)

    def step(self, count: int = 1) -> None:
        """Steps, and obeys what waits for a step."""
        for _ in range(count):
            self.executor.step()
            self.executor.obey()

    def done(self) -> list[tuple[int, int, bool]]:
        """Plans that have ended, with the steps they ran and whether they were revoked."""
        return [(each.plan_seq, each.steps_run, each.revoked) for each in self.events if isinstance(each, PlanDone)]

    def _submit(self, *commands: Command) -> None:
        for command in commands:
            self.executor.submit(command)
