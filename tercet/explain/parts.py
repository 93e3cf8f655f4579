"""What the stages of a request consist of, each with the words for it.

By stage, as the ledger names them. Of several outputs the one that was there the longest is looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tercet.ledger.row import Row

from .amounts import number, seconds_text
from .story import Cause, Gap, Limit, OutputStory, Place, Story, Stretch

# A gap so many times as long as the middle step is one that has a reason of its own.
STRIKING = 5.0
# Steps are told by their mean as well if that is so many times the middle one.
_UNEVEN = 1.5
# Part of a stage that is not worth a word.
_NEGLIGIBLE = 0.02
# Of a gap that was one long step, the part that the steps take at least.
_MOSTLY = 0.5


class Kind(enum.Enum):
    """What took the time. Values are words in JSON, and sections of docs/troubleshooting.md begin with some."""

    CHECKS = "checks"
    TOKENIZE = "tokenize"
    PREPARE = "prepare"
    ADMISSION = "admission"
    QUEUE = "queue"  # nobody says why
    NO_WORKER = "no worker"
    SHARE = "share"
    CLASS = "class"
    SLOTS = "slots"
    BLOCKS = "blocks"
    BUDGET = "budget"
    PROMPT = "prompt"
    GRAMMAR = "grammar"
    GAVE_WAY = "gave way"
    WORKER_LOST = "worker lost"
    SCHEDULER_LOST = "scheduler lost"
    MOVED = "moved"
    READER = "reader"
    TOKENS = "tokens"
    SLOW_STEP = "slow step"
    SILENCE = "silence"
    PAUSED = "paused"
    TRANSIT = "transit"  # from one process to another
    STREAM = "stream"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Part:
    """So many seconds, and what they went into."""

    kind: Kind
    seconds: float
    words: str


Parts = Mapping[str, Sequence[Part]]

_LIMITS: Mapping[Limit, tuple[Kind, str]] = {
    Limit.NO_WORKER: (Kind.NO_WORKER, "a worker that can run it"),
    Limit.SHARE: (Kind.SHARE, "blocks of its tenant's share"),
    Limit.CLASS: (Kind.CLASS, "a place among those of its class on a worker"),
    Limit.SLOTS: (Kind.SLOTS, "a slot on a worker"),
    Limit.BLOCKS: (Kind.BLOCKS, "KV blocks"),
    Limit.BUDGET: (Kind.BUDGET, "room for its prompt in a step"),
}
_AGAIN: Mapping[Cause, tuple[Kind, str]] = {
    Cause.GAVE_WAY: (Kind.GAVE_WAY, "it had to give way to others"),
    Cause.WORKER_LOST: (Kind.WORKER_LOST, "its worker was lost"),
    Cause.MOVED: (Kind.MOVED, "its worker was about to stop"),
    Cause.TAKEN_OVER: (Kind.SCHEDULER_LOST, "another scheduler took it over"),
    Cause.READER: (Kind.READER, "it was paused"),
}


def parts_of_row(row: Row) -> dict[str, list[Part]]:
    """By what the gateway measured."""
    stages = row.stages
    words = {
        "checks": (Kind.CHECKS, "it was looked whether anything could serve it"),
        "tokenize": (Kind.TOKENIZE, f"its text became {number(row.prompt_tokens, 'token')}"),
        "prepare": (Kind.PREPARE, "its grammar, bad words and quotas were looked at"),
        "admission": (Kind.ADMISSION, "the scheduler did not answer yet"),
        "waiting": (Kind.QUEUE, "waited in the scheduler's queue"),
        "prefill": (Kind.PROMPT, f"its prompt of {number(row.prompt_tokens, 'token')} was computed"),
        "decode": (Kind.TOKENS, f"{number(row.generated_tokens or 0, 'token')} were generated"),
        "paused": (Kind.PAUSED, "its client was far behind with reading"),
        "stream": (Kind.STREAM, "the last of its text was on its way to its client"),
    }
    parts = {name: [Part(words[name][0], seconds, words[name][1])] for name, seconds in stages.items() if seconds}
    decode_s, gap_s = stages.decode_s, row.largest_gap_s
    if decode_s and gap_s and row.tpot_s and STRIKING * row.tpot_s < gap_s <= decode_s:
        gap = Part(Kind.SILENCE, gap_s, "no token came, once")
        parts["decode"] = [Part(Kind.TOKENS, decode_s - gap_s, words["decode"][1]), gap]
    return parts


def parts_of_stories(stories: Sequence[Story]) -> dict[str, list[Part]]:
    """By what plan logs say, of the schedulers that had it one after the other. Those of the gateway's stages are not
    among them."""
    parts: dict[str, list[Part]] = {}
    last = stories[-1].last_output if stories else None
    if last is None:
        return parts
    before: Story | None = None
    has_token = False
    for story in stories:
        output = next((each for each in story.outputs if each.index == last.index), None)
        if output is None:
            continue
        if before is not None and story.arrived_at > before.until:
            lost = Part(Kind.SCHEDULER_LOST, story.arrived_at - before.until, "no scheduler had it")
            parts.setdefault("decode" if has_token else "waiting", []).append(lost)
        has_token |= story.taken_over
        for name, found in _of_output(story, output, begun=has_token).items():
            parts.setdefault(name, []).extend(found)
        has_token |= output.first_token_at is not None
        before = story
    return {name: _merged(found) for name, found in parts.items()}


def _of_output(story: Story, output: OutputStory, *, begun: bool) -> dict[str, list[Part]]:
    parts: dict[str, list[Part]] = {}
    started = begun
    for stretch in output.stretches:
        begun |= output.first_token_at is not None and stretch.began_at >= output.first_token_at
        started |= stretch.place is not Place.QUEUED
        name = "decode" if begun else "prefill" if started else "waiting"
        if stretch.place is Place.PAUSED:
            parts.setdefault("paused", []).append(
                Part(Kind.PAUSED, stretch.seconds, "its client was far behind with reading")
            )
        elif stretch.place is Place.CANCELLING:
            parts.setdefault("release", []).append(
                Part(Kind.RELEASE, stretch.seconds, "its worker had not let its blocks go yet")
            )
        else:
            parts.setdefault(name, []).extend(_of_stretch(story, output, stretch, first=name == "waiting"))
    return parts


def _of_stretch(story: Story, output: OutputStory, stretch: Stretch, *, first: bool) -> list[Part]:
    if stretch.place is Place.QUEUED and first:
        known = [Part(*_waited(story, limit, seconds)) for limit, seconds in stretch.limits]
        rest = stretch.seconds - sum(part.seconds for part in known)
        return [*known, Part(Kind.QUEUE, rest, "waited in the scheduler's queue")] if rest > 1e-9 else known
    if stretch.place in (Place.QUEUED, Place.LEAVING):
        return [_again(output, stretch)]
    if stretch.place is Place.PREFILL:
        again = output.first_token_at is not None and stretch.began_at >= output.first_token_at
        if again or story.taken_over:
            return [Part(Kind.PROMPT, stretch.seconds, "what had been computed was computed again")]
        return _computed(story, output, stretch)
    return _decoded(output, stretch)


def _waited(story: Story, limit: Limit, seconds: float) -> tuple[Kind, float, str]:
    kind, what = _LIMITS[limit]
    if kind is Kind.NO_WORKER:
        return kind, seconds, f"waited for {what}"
    mine = sum(each.count for each in story.served if each.mine)
    others = [f"{number(each.count, 'request')} of {each.traffic_class}" for each in story.served if not each.mine]
    behind = [f"{number(mine, 'request')} of its class"] * bool(mine) + others
    if behind:
        return kind, seconds, f"waited for {what} behind {' and '.join(behind)}"
    running = number(story.running_at_arrival, "sequence")
    return kind, seconds, f"waited for {what}" + f", with {running} running before it" * bool(story.running_at_arrival)


def _again(output: OutputStory, stretch: Stretch) -> Part:
    """In the queue once more, or on its way there."""
    kind, why = _AGAIN.get(stretch.cause or Cause.GAVE_WAY, (Kind.QUEUE, "it waits again"))
    times = {Kind.GAVE_WAY: output.preemptions, Kind.WORKER_LOST: output.losses, Kind.MOVED: output.moves}.get(kind, 0)
    often = f" {number(times, 'time')}" if times > 1 else ""
    waits = [_LIMITS[limit][1] for limit, _ in stretch.limits[:1]]
    return Part(kind, stretch.seconds, f"{why}{often}" + "".join(f", and it waited for {what}" for what in waits))


def _computed(story: Story, output: OutputStory, stretch: Stretch) -> list[Part]:
    waited_s = 0.0 if output.grammar is None else output.grammar.within(stretch)
    parts = [Part(Kind.PROMPT, stretch.seconds - waited_s, _prompt_words(story, output))]
    if waited_s > _NEGLIGIBLE * stretch.seconds:
        return [*parts, Part(Kind.GRAMMAR, waited_s, "its grammar was not compiled at its worker yet")]
    return [Part(Kind.PROMPT, stretch.seconds, parts[0].words)]


def _prompt_words(story: Story, output: OutputStory) -> str:
    cached = f", {number(output.cached_tokens, 'token')} of it from the prefix cache" if output.cached_tokens else ""
    words = f"its prompt of {number(story.prompt_tokens, 'token')} was computed{cached}"
    return f"{words} in {number(output.chunks, 'chunk')}" if output.chunks > 1 else words


def _decoded(output: OutputStory, stretch: Stretch) -> list[Part]:
    words = f"{number(output.tokens, 'token')} were generated"
    middle_s, mean_s = output.median_step_s, output.mean_step_s
    if middle_s is not None and mean_s is not None:
        words += f" in steps of {seconds_text(middle_s)}"
        words += f", on the mean {seconds_text(mean_s)}" * (mean_s > _UNEVEN * middle_s)
    gap = output.gap
    if not _striking(output) or gap is None or not stretch.began_at <= gap.began_at < gap.ended_at <= stretch.ended_at:
        return [Part(Kind.TOKENS, stretch.seconds, words)]
    return [Part(Kind.TOKENS, stretch.seconds - gap.seconds, words), _gap_part(gap)]


def _striking(output: OutputStory) -> bool:
    gap, step_s = output.gap, output.median_step_s
    return gap is not None and gap.decoding and step_s is not None and gap.seconds > STRIKING * step_s


def _gap_part(gap: Gap) -> Part:
    longest = gap.steps[0] if gap.steps else None
    if longest is None or sum(step.seconds for step in gap.steps) < _MOSTLY * gap.seconds:
        return Part(Kind.SILENCE, gap.seconds, "its worker reported no step")
    where = f" of {longest.worker}" if longest.worker else ""
    work = f"{number(longest.tokens, 'token')}"
    if longest.prompt_tokens:
        work += f", {longest.prompt_tokens:,} of them of {number(longest.prompts, 'prompt')}"
    words = f"one step{where} took {seconds_text(longest.seconds)}: it computed {work}"
    return Part(Kind.SLOW_STEP, gap.seconds, words)


def fit(parts: Sequence[Part], seconds: float) -> list[Part]:
    """Of a stage that took so long at the gateway: less each where the scheduler counts more, since what it has done is
    not there yet; where it counts less, the rest was between them."""
    told = sum(part.seconds for part in parts)
    if told > seconds:
        return [Part(part.kind, part.seconds * seconds / told, part.words) for part in parts]
    rest = seconds - told
    if rest < _NEGLIGIBLE * seconds:
        return list(parts)
    return [*parts, Part(Kind.TRANSIT, rest, "it was between scheduler and gateway")]


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Those of one kind as one, with the words of the longest."""
    found: dict[Kind, list[Part]] = {}
    for part in parts:
        found.setdefault(part.kind, []).append(part)
    return [
        Part(kind, sum(part.seconds for part in same), max(same, key=lambda part: part.seconds).words)
        for kind, same in found.items()
    ]
