"""Runs that never were, for contracts to be judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tercet.load.folder import Run
from tercet.load.record import Row, Sample
from tercet.load.summary import VERSION, Summary, summarize
from tercet.load.tally import Tally
from tests.load.rows import done, refused, sample


def run_of(
    rows: Sequence[Row],
    *,
    rates: Sequence[float] = (2.0,),
    samples: Sequence[Sample] = (),
    has_rate: bool = True,
    warm_up_s: float = 0.0,
) -> Run:
    """Points of a sweep by the rows' own `point`; requests are due for 10 s."""
    points = tuple(
        summarize(
            [row for row in rows if row.point == point],
            samples,
            Tally(),
            point=point,
            offered_per_s=rate if has_rate else None,
            warm_up_s=warm_up_s,
            until_s=10.0,
        )
        for point, rate in enumerate(rates)
    )
    return Run(
        Summary(VERSION, "", {"rates": list(rates), "warm_up_s": warm_up_s}, {}, points), tuple(rows), tuple(samples)
    )


def queued(*waiting: int) -> list[Sample]:
    """Looks at a server in whose queue so many wait."""
    found = []
    for at_s, count in enumerate(waiting):
        look = sample(at_s)
        assert look.server is not None
        found.append(dataclasses.replace(look, server=dataclasses.replace(look.server, queued=count)))
    return found


def late(rows: Sequence[Row], by_s: float) -> list[Row]:
    """The same, sent by a client that could not keep up."""
    return [dataclasses.replace(row, sent_s=row.due_s + by_s) for row in rows]


def mixed(good: int, bad: int, refusals: int = 0, point: int = 0) -> list[Row]:
    """Requests that kept their SLO, that missed it and that were refused."""
    rows = [done(index, point=point) for index in range(good)]
    rows += [done(index, point=point, qualified=False, missed="ttft") for index in range(good, good + bad)]
    return rows + [refused(index, point=point) for index in range(good + bad, good + bad + refusals)]
