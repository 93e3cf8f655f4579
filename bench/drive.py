"""Drives an executor without a mesh: plans as a scheduler would for work that all arrives at once and fits."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence

from bench.workload import Request
from worker.executor import Executor
from worker.messages import Attach, Chunk, Event, NewSequence, Plan, PlanDone, StepResult


class Driver:
    """Runs batches of requests on a started executor, one batch at a time."""

    def __init__(self, executor: Executor, max_num_batched_tokens: int, max_num_seqs: int, num_steps: int = 32) -> None:
        self._executor = executor
        self._budget = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._num_steps = num_steps
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._next_id = 0
        executor.submit(Attach(self._events.put))

    def run(self, requests: Sequence[Request]) -> tuple[float, int]:
        """Seconds until the last token, and tokens generated."""
        started = time.perf_counter()
        waiting = list(enumerate(requests, self._next_id))[::-1]
        self._next_id += len(requests)
        missing: dict[int, int] = {}  # prompt tokens not yet computed, by sequence
        running: set[int] = set()
        plan_seq = generated = 0
        while waiting or running:
            while waiting and len(running) < self._max_num_seqs:
                sequence_id, request = waiting.pop()
                running.add(sequence_id)
                missing[sequence_id] = len(request.prompt)
                self._executor.submit(
                    NewSequence(sequence_id, request.prompt, len(request.prompt) + request.max_tokens)
                )
            room = self._budget - (len(running) - len(missing))
            chunks: list[Chunk] = []
            for sequence_id in list(missing):
                if room <= 0:
                    break
                count = min(room, missing[sequence_id])
                chunks.append(Chunk(sequence_id, count))
                room -= count
                missing[sequence_id] -= count
                if missing[sequence_id] == 0:
                    del missing[sequence_id]
            plan_seq += 1
            steps = 1 if missing else self._num_steps
            joined = tuple(chunk.sequence_id for chunk in chunks)
            self._executor.submit(Plan(plan_seq, steps, tuple(chunks), joined))
            generated += self._until_done(plan_seq, running)
        return time.perf_counter() - started, generated

    def _next_event(self) -> Event:
        while True:
            try:
                return self._events.get(timeout=5.0)
            except queue.Empty:
                if not self._executor.alive:
                    raise RuntimeError("the executor has died; its log tells why") from None

    def _until_done(self, plan_seq: int, running: set[int]) -> int:
        """Reads events until the plan is done; takes ended sequences out of `running`, counts tokens."""
        generated = 0
        while True:
            event = self._next_event()
            if isinstance(event, StepResult):
                generated += len(event.token_ids)
                for ended in event.ended:
                    if ended.failure is not None:
                        raise RuntimeError(ended.failure.message)
                    running.discard(ended.sequence_id)
            elif isinstance(event, PlanDone) and event.plan_seq == plan_seq:
                return generated
