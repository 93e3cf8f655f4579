"""Whether answers are what they have to be: a contract's questions, and what is wrong with what is said to them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from .findings import Findings
from .question import Answerer, Question, Said
from .references import Reference, References
from .spec import OutputsSpec, Spec

# Of what is asked twice with a seed.
_SEED, _TEMPERATURE = 7, 1.0
# A cancel in the midst of it needs a midst.
_LONG = 256


def questions(spec: OutputsSpec) -> tuple[Question, ...]:
    """All that are recorded."""
    return tuple(
        [Question(text, False, spec.max_tokens) for text in spec.prompts]
        + [Question(text, True, spec.max_tokens) for text in spec.chats]
    )


async def record(answerer: Answerer, spec: OutputsSpec) -> tuple[Reference, ...]:
    """Asks all of them, one after the other; what could not be answered has an error."""
    return tuple([Reference(each, await answerer.ask(each, spec.timeout_s)) for each in questions(spec)])


@dataclass(frozen=True, slots=True)
class Probed:
    """A question, its answer, and what it is to end with; empty: whatever ends it."""

    question: Question
    said: Said
    finish_reason: str = ""


async def observe(answerer: Answerer, spec: Spec, references: References | None) -> dict[str, Findings]:
    """What is wrong, by measure; of those alone that lines of `spec` are about."""
    outputs = spec.outputs
    found: dict[str, Findings] = {}
    if references is not None and spec.has_measure("wrong_references"):
        said = [await answerer.ask(each.question, outputs.timeout_s) for each in references.answers]
        found["wrong_references"] = unlike(references.answers, said)
    if spec.has_measure("wrong_finish_reasons", "wrong_usage", "changed_by_company"):
        alone = [Probed(each, await answerer.ask(each, outputs.timeout_s)) for each in _whole(outputs)]
        alone = [Probed(each.question, each.said, "length") for each in alone]
        stopped = await _stopped(answerer, alone, outputs.timeout_s)
        found["wrong_finish_reasons"] = wrong_finish_reasons([*alone, *stopped])
        found["wrong_usage"] = wrong_usage([*alone, *stopped])
        if spec.has_measure("changed_by_company"):
            found["changed_by_company"] = await _in_company(answerer, alone, outputs)
    if spec.has_measure("changed_by_repeat"):
        seeded = [dataclasses.replace(each, temperature=_TEMPERATURE, seed=_SEED) for each in _whole(outputs)]
        first = [Reference(each, await answerer.ask(each, outputs.timeout_s)) for each in seeded]
        again = await asyncio.gather(*(answerer.ask(each, outputs.timeout_s) for each in seeded))
        found["changed_by_repeat"] = unlike(first, again)
    if spec.has_measure("going_on_after_cancel"):
        found["going_on_after_cancel"] = await _cancelled(answerer, outputs)
    return found


def _whole(outputs: OutputsSpec) -> tuple[Question, ...]:
    """Those of texts, as long as they may be."""
    return tuple(dataclasses.replace(each, ignore_eos=True) for each in questions(outputs) if not each.is_chat)


async def _stopped(answerer: Answerer, alone: Sequence[Probed], timeout_s: float) -> list[Probed]:
    """The same questions, with a word of each answer as its stop string."""
    probed = []
    for each in alone:
        if stop := stop_word(each.said.text):
            question = dataclasses.replace(each.question, stop=stop)
            probed.append(Probed(question, await answerer.ask(question, timeout_s), "stop"))
    return probed


async def _in_company(answerer: Answerer, alone: Sequence[Probed], outputs: OutputsSpec) -> Findings:
    """The same questions again, all at once and beside others of other lengths."""
    if not alone:
        return Findings(0)
    others = [
        dataclasses.replace(
            alone[index % len(alone)].question, temperature=_TEMPERATURE, seed=index, max_tokens=4 + index
        )
        for index in range(outputs.company)
    ]
    asked = [*(each.question for each in alone), *others]
    said = await asyncio.gather(*(answerer.ask(each, outputs.timeout_s) for each in asked))
    return unlike([Reference(each.question, each.said) for each in alone], said[: len(alone)])


async def _cancelled(answerer: Answerer, outputs: OutputsSpec) -> Findings:
    wrong, count = [], 0
    for each in _whole(outputs):
        question = dataclasses.replace(each, max_tokens=max(_LONG, outputs.max_tokens))
        went_on = await answerer.cancel_midway(question, 2, outputs.timeout_s)
        if went_on is not None:
            count += 1
            wrong += [f"{_named(each)} went on"] if went_on else []
    return Findings(count, tuple(wrong))


def stop_word(text: str) -> str:
    """A word from the midst of a text; empty if it has none. Pure, as all below."""
    words = text.split()
    return words[len(words) // 2] if len(words) > 1 else ""


def unlike(references: Sequence[Reference], said: Sequence[Said]) -> Findings:
    """Answers that are not those of the references."""
    wrong = [
        f"{_named(reference.question)}: {_shown(answer)} instead of {_shown(reference.said)}"
        for reference, answer in zip(references, said, strict=True)
        if not reference.said.same_output(answer)
    ]
    return Findings(len(references), tuple(wrong))


def wrong_finish_reasons(probed: Sequence[Probed]) -> Findings:
    """Answers that did not end with what was to end them, and where it was to."""
    wrong = []
    for each in probed:
        said, question = each.said, each.question
        if said.error:
            wrong.append(f"{_named(question)}: {said.error}")
        elif said.finish_reason != each.finish_reason:
            wrong.append(f"{_named(question)}: {said.finish_reason or 'none'} instead of {each.finish_reason}")
        elif question.stop and question.stop in said.text:
            wrong.append(f"{_named(question)}: the stop string {question.stop!r} is in the text")
    return Findings(len(probed), tuple(wrong))


def wrong_usage(probed: Sequence[Probed]) -> Findings:
    """Answers whose counts are not those of what came. Those with an error have none."""
    wrong, count = [], 0
    for each in probed:
        said, question = each.said, each.question
        streamed = len(said.token_ids) if said.token_ids is not None else None
        if streamed is None and question.ignore_eos and not question.stop:
            streamed = question.max_tokens
        if said.error or streamed is None:
            continue
        count += 1
        if said.output_tokens != streamed:
            wrong.append(f"{_named(question)}: {said.output_tokens} tokens are told, {streamed} came")
        elif not said.prompt_tokens:
            wrong.append(f"{_named(question)}: a prompt of no tokens")
    return Findings(count, tuple(wrong))


def _named(question: Question) -> str:
    text = question.text if len(question.text) <= 24 else f"{question.text[:21]}..."
    return f"{text!r} up to {question.stop!r}" if question.stop else repr(text)


def _shown(said: Said) -> str:
    text = said.text if len(said.text) <= 40 else f"{said.text[:37]}..."
    return said.error or f"{text!r} ({said.finish_reason})"
