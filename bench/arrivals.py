"""What benches ask of a mesh, sent when it is due, whatever became of what came before: by the means of tercet.load."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tercet.errors import RequestError
from tercet.load.ask import Ask
from tercet.load.exchange import Exchange, exchange
from tercet.load.figures import percentile
from tercet.load.grpc_target import GrpcTarget
from tercet.load.principals import Principal
from tercet.load.sender import send_when_due


def greedy(
    at: float, prompt: tuple[int, ...], max_tokens: int, *, traffic_class: str = "", timeout_s: float | None = None
) -> Ask:
    """A greedy request for exactly `max_tokens` tokens, due at `at` seconds from the start."""
    principal = Principal(traffic_class=traffic_class)
    return Ask(0, at, principal, prompt, len(prompt), max_tokens, seed=0, timeout_s=timeout_s)


async def ask(target: GrpcTarget, asked: Ask) -> Exchange:
    """Sends one request now. Times are from now on. Cancelled, it breaks off and returns what it has."""
    start = time.perf_counter()
    seen = Exchange(asked, 0.0, 0.0)
    await exchange(target, seen, lambda: time.perf_counter() - start, _nobody_looks)
    return seen


async def send(target: GrpcTarget, asks: Iterable[Ask], patience_s: float | None = None) -> list[Exchange]:
    """Sends each request when it is due; those not over `patience_s` seconds after the last are broken off."""
    start = time.perf_counter()
    everyone: list[Exchange] = []

    def clock() -> float:
        return time.perf_counter() - start

    async def one(asked: Ask, due_s: float) -> None:
        seen = Exchange(asked, due_s, clock())
        everyone.append(seen)
        await exchange(target, seen, clock, _nobody_looks)

    await send_when_due(asks, one, clock, 0, patience_s)
    return everyone


def _nobody_looks(seen: Exchange, tokens: int) -> None:
    """At a bench while it runs."""


def ttft(seen: Exchange) -> float:
    """Seconds from sending to the first token."""
    assert seen.sent_s is not None
    return seen.moments[0] - seen.sent_s


def tpot(seen: Exchange) -> float:
    """Mean seconds between tokens; 0 for a single one."""
    return (seen.moments[-1] - seen.moments[0]) / max(1, seen.tokens - 1)


def over(seen: Exchange) -> float:
    """Seconds from sending to the end."""
    assert seen.sent_s is not None
    assert seen.end_s is not None
    return seen.end_s - seen.sent_s


def failure(seen: Exchange) -> RequestError | None:
    """What the mesh said instead of an answer, or of the rest of one."""
    cause = seen.error and seen.error.__cause__
    assert cause is None or isinstance(cause, RequestError)
    return cause


def lag(everyone: Iterable[Exchange]) -> dict[str, float]:
    """Milliseconds by which the client itself was late to send."""
    late = [(seen.sent_s - seen.due_s) * 1e3 for seen in everyone if seen.sent_s is not None]
    return {"p50": percentile(late, 50), "p99": percentile(late, 99), "max": max(late)}
