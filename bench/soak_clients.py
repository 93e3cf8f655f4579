"""Clients of every kind, again and again, and a memory of what each question has been answered.

Texts depend on prompt and seed alone, so that whatever the mesh goes through, two answers to one question differ in
their length at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tercet import errors
from tercet.client import AsyncClient, AsyncGeneration, Delta, Finished

NUM_QUESTIONS = 60
CLASSES = ("interactive", "rag", "batch")
FATES = {"read": 60, "cancel": 15, "leave": 10, "dawdle": 5, "deadline": 10}
# A request without an end for so long never gets one.
LONGEST_S = 150.0
# So long is one that dawdles busy with each of so many deltas.
DAWDLE_S = 0.5
DAWDLED_DELTAS = 30
# Between two tries after an error, in seconds, so that a mesh that is down is not asked a thousand times.
PAUSE_S = 0.1
# What a mesh that is broken now and then may say.
EXPLAINED = frozenset(
    {
        "GATEWAY_LOST", "SCHEDULER_LOST", "WORKER_LOST", "NO_WORKER", "DRAINING", "QUEUE_FULL", "SLOW_CONSUMER",
        "DEADLINE_PASSED", "QUEUE_TIMEOUT",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and a seed, and the outputs of one request."""

    number: int
    prompt: tuple[int, ...]
    n: int


@dataclass(slots=True)
class Told:
    """A request that was accepted: how it ended, when, and what its client got, of all outputs."""

    request_id: str
    end: str
    ended_at: float
    num_tokens: int


@dataclass(slots=True)
class Memory:
    """What all clients have seen. `mismatches` are answers that another one to the same question contradicts."""

    # By question and output.
    answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    mismatches: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def compare(self, request_id: str, question: Question, output: int, tokens: Sequence[int]) -> None:
        """Takes an answer, or its beginning."""
        known = self.answers.setdefault((question.number, output), [])
        shared = min(len(known), len(tokens))
        if known[:shared] != list(tokens[:shared]):
            self.mismatches.append(f"{request_id}: output {output} of question {question.number}")
        elif len(tokens) > len(known):
            known[:] = tokens


def questions(vocab_size: int, rng: random.Random) -> list[Question]:
    """Short and long prompts, half of them with a beginning that others have too."""
    shared = [rng.randrange(3, vocab_size) for _ in range(256)]
    found = []
    for number in range(NUM_QUESTIONS):
        length = rng.choice((4, 16, 64, 200, 500))
        head = shared[: rng.choice((0, length // 2))]
        tail = (rng.randrange(3, vocab_size) for _ in range(length - len(head)))
        found.append(Question(number, (*head, *tail), rng.choice((1, 1, 1, 1, 3))))
    return found


class Clients:
    """So many at a time, each with a connection of its own."""

    def __init__(self, address: str, asked: Sequence[Question], rng: random.Random) -> None:
        self.memory = Memory()
        self._address = address
        self._questions = asked
        self._rng = rng
        self._numbers = itertools.count(1)
        self._stopped = False

    async def run(self, num_clients: int) -> None:
        """Until `stop`, and every request has had its end."""
        await asyncio.gather(*(self._live() for _ in range(num_clients)))

    def stop(self) -> None:
        self._stopped = True

    async def _live(self) -> None:
        while not self._stopped:
            async with AsyncClient(self._address) as client:
                for _ in range(self._rng.randint(1, 20)):
                    if self._stopped:
                        return
                    fate = self._rng.choices([*FATES], [*FATES.values()])[0]
                    if not await self._ask(client, fate):
                        await asyncio.sleep(PAUSE_S)
                    if fate == "leave":
                        break

    async def _ask(self, client: AsyncClient, fate: str) -> bool:
        """One request; whether it was served."""
        rng, memory = self._rng, self.memory
        question, request_id = rng.choice(self._questions), f"soak-{next(self._numbers)}"
        generation = client.generate(
            question.prompt,
            request_id=request_id,
            seed=question.number,
            temperature=0.9,
            max_tokens=rng.choice((1, 8, 40, 120, 300)),
            n=question.n,
            traffic_class=rng.choice(CLASSES),
            ignore_eos=True,
            timeout_s=rng.uniform(0.05, 1.0) if fate == "deadline" else None,
        )
        got: list[list[int]] = [[] for _ in range(question.n)]
        end = ""
        try:
            end = await asyncio.wait_for(self._read(generation, got, fate), LONGEST_S)
        except asyncio.TimeoutError:
            end = "NO_END"
            memory.strange.append(f"{request_id}: no end for {LONGEST_S:g} s, {fate}")
        except errors.RequestError as error:
            end = error.reason
            if end not in EXPLAINED or (end == "DEADLINE_PASSED" and fate != "deadline"):
                memory.strange.append(f"{request_id}: {end}: {error.message}, {fate}")
        memory.ends[end] += 1
        memory.tokens += sum(map(len, got))
        for output, tokens in enumerate(got):
            memory.compare(request_id, question, output, tokens)
        if any(got):
            memory.told.append(Told(request_id, end, time.monotonic(), sum(map(len, got))))
        return end in ("finished", "left")

    async def _read(self, generation: AsyncGeneration, got: list[list[int]], fate: str) -> str:
        """How it ended: finished, or left by its client. Raises RequestError."""
        leave_after = self._rng.randint(0, 60) if fate in ("cancel", "leave") else None
        dawdles = DAWDLED_DELTAS if fate == "dawdle" else 0
        end = ""
        async with contextlib.aclosing(generation.__aiter__()) as events:
            async for event in events:
                if isinstance(event, Delta):
                    got[event.output_index] += event.token_ids
                    if leave_after is not None and sum(map(len, got)) >= leave_after:
                        return "left"
                    if dawdles:
                        dawdles -= 1
                        await asyncio.sleep(DAWDLE_S)
                elif isinstance(event, Finished):
                    assert not end, "two ends"
                    end = "finished"
        assert end, "a stream ended without an end"
        return end
