"""The requests of one point of a sweep, drawn from the workload's seed. Pure.

Each request has random numbers of its own, by its index: however many there are, and whichever process sends it, it is
the same. Lengths and principals are those of all points; tokens are a point's own, since its server would find them in
its cache.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .arrivals import Kind
from .ask import Ask, Cancel
from .lengths import Lengths
from .principals import Principal
from .prompts import Prefix, Source
from .trace import Recorded
from .workload import Workload
from .workload_error import WorkloadError

# Of those who lose interest, the part that does before the first token, and how soon.
_BEFORE_FIRST = 0.25
_SOON_S = 0.2


@dataclass(frozen=True, slots=True)
class Share:
    """Of all requests those whose index leaves `part` when divided by `parts`: what one of several processes sends."""

    part: int = 0
    parts: int = 1

    def has(self, index: int) -> bool:
        return index % self.parts == self.part

    def of(self, count: int) -> int:
        """How many of so many indices it has."""
        return len(range(self.part, count, self.parts))


def check_fits(workload: Workload, max_model_len: int | None) -> None:
    """Raises WorkloadError for prompts and outputs that are too long for the model, as most are drawn."""
    if max_model_len is None or workload.reads_questions or workload.trace:
        return
    typical = [
        each.least if each.median is None else round(each.median)
        for each in (workload.input_lengths(), workload.output_lengths())
    ]
    if sum(typical) > max_model_len:
        raise WorkloadError(
            "input",
            f"{typical[0]:,} tokens and an output of {typical[1]:,} do not fit a context of {max_model_len:,} tokens",
        )


def asks(
    workload: Workload, point: int, source: Source, max_model_len: int | None, share: Share | None = None
) -> Iterator[Ask]:
    """Those of `share`, in the order in which they are due, until the workload says that it is over; of a closed loop
    as many as `requests` says, for ever if that is 0. Lengths that are too long for the model are cut to what fits."""
    share = share or Share()
    lengths = workload.input_lengths(), workload.output_lengths()
    recorded = workload.recorded()
    for index, due_s in enumerate(_moments(workload, point, recorded)):
        if workload.requests and index >= workload.requests:
            return
        if due_s is not None and workload.duration_s and due_s >= workload.duration_s:
            return
        if share.has(index):
            known = recorded[index % len(recorded)] if recorded else None
            yield _ask(workload, point, source, index, due_s, lengths, known, max_model_len)


def _moments(workload: Workload, point: int, recorded: Sequence[Recorded]) -> Iterator[float | None]:
    how, rate = workload.how(), workload.rates[point]
    if how.kind is Kind.TRACE:
        return (each.at / rate for each in recorded)
    if how.kind is Kind.CLOSED:
        return itertools.repeat(None)
    # A ramp to so many requests in all takes twice as long as they would at its end.
    ramp_s = workload.duration_s or 2 * workload.requests / rate
    return iter(how.moments(rate, random.Random(f"{workload.seed}:moments:{rate:g}"), ramp_s))


def _ask(
    workload: Workload,
    point: int,
    source: Source,
    index: int,
    due_s: float | None,
    lengths: tuple[Lengths, Lengths],
    recorded: Recorded | None,
    max_model_len: int | None,
) -> Ask:
    rng = random.Random(f"{workload.seed}:{index}")
    prompt_tokens, max_tokens = (each.draw(rng) for each in lengths)
    principal = workload.principals.draw(rng)
    prefix_draw, cancel_draw, slow_draw, moment = (rng.random() for _ in range(4))
    if recorded is not None:
        prompt_tokens, max_tokens = recorded.prompt_tokens or prompt_tokens, recorded.max_tokens or max_tokens
        principal = _recorded_principal(workload, recorded, principal)
    if max_model_len is not None:
        max_tokens = min(max_tokens, max_model_len - 1)
        prompt_tokens = min(prompt_tokens, max_model_len - max_tokens)
    own = random.Random(f"{workload.seed}:{point}:{index}")
    made = source.make(index, prompt_tokens, _prefix(workload, point, prefix_draw), own)
    max_tokens = made.max_tokens or max_tokens
    return Ask(
        index=index,
        due_s=due_s,
        principal=principal,
        prompt=made.prompt,
        prompt_tokens=made.tokens,
        max_tokens=max_tokens,
        seed=index,
        ignore_eos=workload.ignore_eos,
        temperature=workload.temperature,
        timeout_s=workload.timeout_s,
        cancel=_cancel(moment, max_tokens) if cancel_draw < workload.cancel_ratio else None,
        read_tokens_per_s=workload.slow_reader_tokens_per_s if slow_draw < workload.slow_reader_ratio else None,
    )


def _recorded_principal(workload: Workload, recorded: Recorded, drawn: Principal) -> Principal:
    tenants = {each.name: each for each in workload.principals.tenants}
    name = drawn.tenant if recorded.tenant is None else recorded.tenant
    return Principal(
        name,
        tenants[name].api_key if name in tenants else "",
        drawn.traffic_class if recorded.traffic_class is None else recorded.traffic_class,
        drawn.priority if recorded.priority is None else recorded.priority,
    )


def _prefix(workload: Workload, point: int, draw: float) -> Prefix | None:
    """The first part of the draws shares one, and is divided among the groups evenly."""
    shared = workload.shared_prefix
    if shared is None or draw >= shared.part:
        return None
    group = int(draw / shared.part * shared.groups)
    return Prefix(shared.tokens, f"{workload.seed}:{point}:prefix:{group}")


def _cancel(draw: float, max_tokens: int) -> Cancel:
    if draw < _BEFORE_FIRST or max_tokens < 2:
        return Cancel(draw / _BEFORE_FIRST * _SOON_S if draw < _BEFORE_FIRST else draw * _SOON_S, 0)
    return Cancel(None, 1 + int((draw - _BEFORE_FIRST) / (1 - _BEFORE_FIRST) * (max_tokens - 1)))
