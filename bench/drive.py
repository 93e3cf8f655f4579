"""Drives an executor without a mesh: plans as a scheduler would for work that all arrives at once and fits."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence

from bench.workload import Request
from worker.executor import Executor
from worker.messages import Attach, Chunk, Event, NewSequence, Plan, PlanDone, StepResult

# Plans in flight, so that the executor never waits for the next one.
_NUM_PLANS = 2
# Who waits for a place starts with so many others, or with all that are left: each start ends a run.
_FEWEST_STARTS = 8


class Driver:
    """Runs batches of requests on a started executor, one batch at a time."""

    def __init__(self, executor: Executor, max_num_batched_tokens: int, max_num_seqs: int, num_steps: int = 32) -> None:
        self._executor = executor
        self._budget = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._num_steps = num_steps
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._next_id = 0
        self._plan_seq = 0
        self._in_flight: set[int] = set()
        self._unread: set[int] = set()  # plans in flight whose chunks are not computed
        self._running: set[int] = set()
        self._missing: dict[int, int] = {}  # prompt tokens that no plan has yet, by sequence
        executor.submit(Attach(self._events.put))

    def run(self, requests: Sequence[Request]) -> tuple[float, int]:
        """Seconds until the last token, and tokens generated."""
        started = time.perf_counter()
        waiting = list(requests)[::-1]
        generated = 0
        while waiting or self._running:
            self._start(waiting)
            if self._missing:
                if len(self._unread) < _NUM_PLANS:
                    self._send_chunks()
                    continue
            elif len(self._in_flight) < _NUM_PLANS:
                self._send(self._num_steps, [], revoke_through=0)
                continue
            generated += self._take(self._next_event())
        took = time.perf_counter() - started
        while self._in_flight:
            self._take(self._next_event())
        return took, generated

    def _start(self, waiting: list[Request]) -> None:
        free = self._max_num_seqs - len(self._running)
        count = min(free, len(waiting))
        if count < min(_FEWEST_STARTS, len(waiting)):
            return
        for _ in range(count):
            request = waiting.pop()
            sequence_id, length = self._next_id, len(request.prompt)
            self._next_id += 1
            self._running.add(sequence_id)
            self._missing[sequence_id] = length
            self._executor.submit(NewSequence(sequence_id, request.prompt, length + request.max_tokens))

    def _send_chunks(self) -> None:
        """Prompts as the budget allows, at the next step boundary."""
        room = self._budget - (len(self._running) - len(self._missing))
        chunks: list[Chunk] = []
        for sequence_id, missing in list(self._missing.items()):
            if room <= 0:
                break
            count = min(room, missing)
            chunks.append(Chunk(sequence_id, count))
            room -= count
            self._missing[sequence_id] -= count
            if count == missing:
                del self._missing[sequence_id]
        # Whatever only decodes gives way; what has chunks to compute does not.
        revoke_through = min(self._unread, default=self._plan_seq + 1) - 1
        self._unread.add(self._plan_seq + 1)
        self._send(1 if self._missing else self._num_steps, chunks, revoke_through)

    def _send(self, num_steps: int, chunks: list[Chunk], revoke_through: int) -> None:
        self._plan_seq += 1
        self._in_flight.add(self._plan_seq)
        joined = tuple(chunk.sequence_id for chunk in chunks)
        self._executor.submit(Plan(self._plan_seq, num_steps, tuple(chunks), joined, revoke_through))

    def _next_event(self) -> Event:
        while True:
            try:
                return self._events.get(timeout=5.0)
            except queue.Empty:
                if not self._executor.alive:
                    raise RuntimeError("the executor has died; its log tells why") from None

    def _take(self, event: Event) -> int:
        """Notes what an event says; the tokens that it brings."""
        if isinstance(event, PlanDone):
            self._in_flight.discard(event.plan_seq)
            self._unread.discard(event.plan_seq)
        if not isinstance(event, StepResult):
            return 0
        self._unread.discard(event.plan_seq)
        for ended in event.ended:
            if ended.failure is not None:
                raise RuntimeError(ended.failure.message)
            self._running.discard(ended.sequence_id)
        return len(event.token_ids)
