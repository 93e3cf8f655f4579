"""Lives of all kinds on one executor: requests that finish, are cancelled, preempted, swapped, at any moment.

    python -m bench.soak --preset tiny --device cuda --requests 10000

Three of ten are cancelled, two preempted and one swapped. At the end no block may be in use; memory is printed at each
tenth, and an executor that says nothing for a minute is an error.
"""

from __future__ import annotations

import os
import queue
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import torch

from bench.engine import start_executor
from bench.workload import PRESETS
from tercet.sections import WorkerSettings
from tercet.telemetry import configure_logging
from worker.executor import Executor
from worker.messages import (
    Attach,
    Chunk,
    Event,
    NewSequence,
    Plan,
    PlanDone,
    Release,
    ReleaseCause,
    Released,
    Resume,
    StepResult,
)

SILENCE_S = 60.0
FATES = {ReleaseCause.CANCEL: 0.3, ReleaseCause.PREEMPT: 0.2, ReleaseCause.SWAP: 0.1}
MAX_PROMPT, MAX_OUTPUT, MAX_CHUNK = 256, 96, 128


@dataclass(slots=True)
class Life:
    """A request on its way: what it has, and what will happen to it."""

    sequence_id: int
    tokens: list[int]
    max_length: int
    stop_token_ids: frozenset[int]
    fate: ReleaseCause | None  # once it has `fate_at` tokens
    fate_at: int
    num_missing: int = 0  # tokens no chunk was planned for yet
    swapped: bool = False

    def spec(self) -> NewSequence:
        """As it begins, or begins again."""
        self.num_missing = len(self.tokens)
        return NewSequence(self.sequence_id, tuple(self.tokens), self.max_length, self.stop_token_ids)


@dataclass(slots=True)
class Tally:
    """What became of all of them."""

    num_steps: int = 0
    num_tokens: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Soak:
    """A scheduler that keeps two plans in flight, revokes at random, and lets happen to sequences what may.

    It admits only what has room at its full length, so that the executor may refuse nothing.
    """

    def __init__(
        self, executor: Executor, num_blocks: int, block_size: int, max_num_seqs: int, vocab_size: int
    ) -> None:
        self._executor = executor
        self._num_free = num_blocks
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._vocab_size = vocab_size
        self._pick = random.Random(1)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lives: dict[int, Life] = {}
        self._plan_seq = self._num_done = 0
        self._may_revoke = False  # the last plan: nobody depends on it
        self._next_id = 0
        self._num_used = 0  # blocks, as last reported
        self.tally = Tally()
        executor.submit(Attach(self._events.put))

    def run(self, num_requests: int, on_tenth: Callable[[], None]) -> None:
        """Sees so many requests to their ends.

        Raises RuntimeError if the executor falls silent, fails a sequence, does not give every token, or keeps blocks.
        """
        last = self._next_id + num_requests
        shown = 0
        while self._next_id < last or self._lives:
            self._admit(last)
            self._plan()
            while self._plan_seq - self._num_done >= 2:
                self._read()
            if self._next_id * 10 // num_requests > shown:
                shown += 1
                on_tenth()
        self._plan()  # its end tells of the pool
        while self._num_done < self._plan_seq:
            self._read()
        if self._num_used:
            raise RuntimeError(f"{self._num_used} blocks are in use, and nobody is there")

    def _admit(self, last: int) -> None:
        pick = self._pick
        while self._next_id < last and len(self._lives) < self._max_num_seqs:
            prompt = [pick.randrange(self._vocab_size) for _ in range(pick.randint(1, MAX_PROMPT))]
            max_length = len(prompt) + pick.randint(1, MAX_OUTPUT)
            if self._blocks(max_length) > self._num_free:
                return
            self._num_free -= self._blocks(max_length)
            # More than a device looks at, now and then.
            stops = frozenset(pick.randrange(self._vocab_size) for _ in range(pick.choice((0, 2, 40))))
            (fate,) = pick.choices([*FATES, None], [*FATES.values(), 1 - sum(FATES.values())])
            at = len(prompt) + pick.randint(0, MAX_OUTPUT // 2)
            life = Life(self._next_id, prompt, max_length, stops, fate, at)
            self._lives[self._next_id] = life
            self._next_id += 1
            self._executor.submit(life.spec())

    def _plan(self) -> None:
        """Further chunks for whom tokens are missing, and who was swapped comes back."""
        chunks: list[Chunk] = []
        for life in self._lives.values():
            if life.num_missing and len(chunks) < 32:
                count = min(life.num_missing, self._pick.randint(1, MAX_CHUNK))
                life.num_missing -= count
                chunks.append(Chunk(life.sequence_id, count))
        back = [life for life in self._lives.values() if life.swapped]
        for life in back:
            life.swapped = False
        if back:
            self._executor.submit(Resume(tuple(life.sequence_id for life in back)))
        join = (*(chunk.sequence_id for chunk in chunks), *(life.sequence_id for life in back))
        # A chunk that is revoked with its plan would be missing for ever.
        revoke_through = self._plan_seq if self._may_revoke and self._pick.random() < 0.2 else 0
        self._may_revoke = not join
        self._plan_seq += 1
        self._executor.submit(Plan(self._plan_seq, self._pick.randint(1, 16), tuple(chunks), join, revoke_through))

    def _read(self) -> None:
        try:
            event = self._events.get(timeout=SILENCE_S)
        except queue.Empty:
            raise RuntimeError("the executor has fallen silent") from None
        match event:
            case StepResult():
                self._take(event)
            case Released():
                self._take_released(event)
            case PlanDone():
                self._num_done += 1
                self._num_used = event.blocks.used

    def _take(self, step: StepResult) -> None:
        self.tally.num_steps += 1
        self.tally.num_tokens += len(step.token_ids)
        for sequence_id, token_id in zip(step.sequence_ids, step.token_ids, strict=True):
            life = self._lives[sequence_id]
            life.tokens.append(token_id)
            if life.fate is not None and len(life.tokens) >= life.fate_at:
                self._executor.submit(Release((sequence_id,), life.fate))
                life.fate = None
        for ended in step.ended:
            life = self._lives[ended.sequence_id]
            if ended.failure is not None:
                raise RuntimeError(ended.failure.message)
            stopped = life.tokens[-1] in life.stop_token_ids
            if not stopped and len(life.tokens) != life.max_length:
                raise RuntimeError(f"a sequence of {life.max_length} tokens ended with {len(life.tokens)}")
            self._forget(life, "stop" if stopped else "length")

    def _take_released(self, answer: Released) -> None:
        life = self._lives.get(answer.sequence_id)
        if life is None or not answer.found:  # it had ended
            return
        if answer.cause is ReleaseCause.CANCEL:
            self._forget(life, "cancel")
            return
        self.tally.ends[answer.cause.value] += 1
        life.swapped = answer.swapped
        if not answer.swapped:
            self._executor.submit(life.spec())

    def _forget(self, life: Life, end: str) -> None:
        self.tally.ends[end] += 1
        self._num_free += self._blocks(life.max_length)
        del self._lives[life.sequence_id]

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def memory_line(device: torch.device) -> str:
    """What this process has now, in MiB. On a GPU *in tensors* and *held* are the allocator's, *split off* is the part
    of what it holds that lies free between tensors, and *taken* the driver's figure for the whole card.
    """
    host = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    figures = {"on the host": host}
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        figures |= {
            "on the GPU in tensors": stats["allocated_bytes.all.current"],
            "held": stats["reserved_bytes.all.current"],
            "split off": stats["inactive_split_bytes.all.current"],
            "taken": total - free,
        }
    return ", ".join(f"{size >> 20:,} MiB {name}" for name, size in figures.items())


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny")
@click.option("--device", default="cpu", help="cpu or cuda")
@click.option("--requests", type=click.IntRange(1), default=10_000)
def main(preset: str, device: str, requests: int) -> None:
    """Prints what became of them, and memory as it went."""
    configure_logging("bench", "error")
    settings = WorkerSettings(
        device=device, kv_cache_memory=1 << 30, max_num_seqs=32 if device == "cpu" else 256, swap_space=256 << 20
    )
    executor, budget = start_executor(PRESETS[preset], settings, torch.bfloat16)
    vocab_size = PRESETS[preset].vocab_size
    soak = Soak(executor, budget.num_blocks, budget.block_size, settings.max_num_seqs, vocab_size)
    began = time.perf_counter()

    def show() -> None:
        print(f"{time.perf_counter() - began:6.1f} s: {memory_line(torch.device(device))}", flush=True)

    show()
    soak.run(requests, show)
    show()
    executor.stop()
    print(soak.tally)


if __name__ == "__main__":
    main()
