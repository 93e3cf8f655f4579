"""Generations to the answer of one call, at once or as they come. The same requests that gRPC serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tercet.errors import RequestError

from ..answer_size import AnswerSize
from ..generation import Generation
from ..output import Finish
from ..prompt_logprobs import PromptPart
from ..stream import Delta
from ..summary import Summary
from .delivery import deliver
from .exchange import Exchange, encode_json
from .long_json import encode_in_turns
from .shapes import Json, Shape

Made = TypeVar("Made")

_DONE = b"[DONE]"


async def answer_once(
    exchange: Exchange, generations: Sequence[Generation], shape: Shape, headers: Mapping[str, str], limit_s: float
) -> None:
    """Waits for all outputs of all generations, which have been opened, and answers."""
    size = AnswerSize()
    made = await together([owned(each, _read_all(each, size)) for each in generations])
    choices: list[Json] = []
    for generation, (parts, deltas, summary) in zip(generations, made, strict=True):
        _note_prompt(shape, range(len(choices), len(choices) + len(summary.finishes)), generation, parts)
        own: list[list[Delta]] = [[] for _ in summary.finishes]
        for delta in deltas:
            own[delta.output_index].append(delta)
        for its_deltas, finish in zip(own, summary.finishes, strict=True):
            choices.append(shape.choice(len(choices), its_deltas, finish))
            # Each of them may be long.
            await asyncio.sleep(0)
    body = await encode_in_turns(shape.whole(choices, [summary for _, _, summary in made]))
    for generation, (_, _, summary) in zip(generations, made, strict=True):
        generation.delivered_tokens = summary.completion_tokens
    stream = generations[-1].stream
    assert stream is not None
    await deliver(exchange.answer(200, body, headers), stream, limit_s)


async def answer_in_events(
    exchange: Exchange, generations: Sequence[Generation], shape: Shape, headers: Mapping[str, str], limit_s: float
) -> None:
    """Answers with what there is, as it comes. Those of several generations take turns."""
    await exchange.start_events(headers)
    pumps = [_Pump(exchange, generation, shape, limit_s) for generation in generations]
    first = 0
    for pump in pumps:
        first = await pump.begin(first)
    summaries = await together([owned(pump.generation, pump.run()) for pump in pumps])
    # The last of them waits for the client in the name of all.
    last = pumps[-1]
    usage = shape.usage_event(summaries)
    if usage is not None:
        await last.write(exchange.event(encode_json(usage)))
    await last.write(exchange.event(_DONE))
    await last.write(exchange.end_events())


class _Pump:
    """One generation on its way into an answer in events."""

    def __init__(self, exchange: Exchange, generation: Generation, shape: Shape, limit_s: float) -> None:
        self._exchange = exchange
        self.generation = generation
        self._shape = shape
        self._limit_s = limit_s
        self._first = 0
        # Outputs whose choices have had their end.
        self._closed: set[int] = set()

    async def begin(self, first: int) -> int:
        """Writes what its choices begin with, of which the first has that index. The index behind the last."""
        assert self.generation.stream is not None
        self._first = first
        end = first + self.generation.stream.num_outputs
        parts = await self.generation.read_whole_prompt()
        _note_prompt(self._shape, range(first, end), self.generation, parts)
        openings = [opening for index in range(first, end) if (opening := self._shape.opening(index)) is not None]
        for opening in openings:
            # It may have the logprobs of a long prompt.
            await self.write(self._exchange.event(await encode_in_turns(self._shape.event(opening))))
        return end

    async def run(self) -> Summary:
        """Writes all of it."""
        generation, shape, stream = self.generation, self._shape, self.generation.stream
        assert stream is not None
        while (delta := await generation.read()) is not None:
            # Before, not behind: once the write has begun, nobody can take the tokens back.
            generation.delivered_tokens += len(delta.token_ids)
            piece = shape.piece(self._first + delta.output_index, delta)
            if piece is not None:
                await self._write_choice(piece)
            # The last ones end with the request: a client that has all it wants may leave.
            if delta.finish is not None and not stream.ended:
                await self._close(delta.output_index, delta.finish)
        summary = await generation.finish()
        for output_index, finish in enumerate(summary.finishes):
            await self._close(output_index, finish)
        return summary

    async def _close(self, output_index: int, finish: Finish) -> None:
        """Ends a choice, once."""
        if output_index not in self._closed:
            self._closed.add(output_index)
            await self._write_choice(self._shape.closing(self._first + output_index, finish))

    async def write(self, writing: Awaitable[None]) -> None:
        """Waits for a write, for as long as a client may read nothing."""
        assert self.generation.stream is not None
        await deliver(writing, self.generation.stream, self._limit_s)

    def _write_choice(self, choice: Json) -> Awaitable[None]:
        return self.write(self._exchange.event(encode_json(self._shape.event(choice))))


async def together(works: Sequence[Coroutine[Any, Any, Made]]) -> list[Made]:
    """The results of all. The first error ends the others, and is raised when they have ended."""
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def owned(generation: Generation, work: Awaitable[Made]) -> Made:
    """What is done for one of several generations: an error in it is that one's, and not the others'."""
    try:
        return await work
    except RequestError as error:
        generation.close(error)
        raise


async def _read_all(generation: Generation, size: AnswerSize) -> tuple[list[PromptPart], list[Delta], Summary]:
    parts, deltas = await generation.read_all(size)
    return parts, deltas, await generation.finish()


def _note_prompt(shape: Shape, choices: range, generation: Generation, parts: Sequence[PromptPart]) -> None:
    assert generation.admission is not None
    if generation.admission.prompt:
        shape.note_prompt(choices, generation.admission.prompt, parts)
