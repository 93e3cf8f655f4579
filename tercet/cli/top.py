"""``tercet top``: a live view of a running mesh."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

import click
from rich.live import Live

from tercet.cli.asking import run_async
from tercet.cli.connection import client_options
from tercet.cli.console import Output
from tercet.cli.finite import FiniteRange
from tercet.cli.keys import keys_pressed
from tercet.cli.root import to_text
from tercet.cli.top_picture import Picture
from tercet.cli.top_rates import Moment, Rates, rates_between, rates_to_data
from tercet.client import AsyncClient
from tercet.errors import PermissionDeniedError, RequestError, UnauthenticatedError

# A mesh that has not answered by then is shown as lost.
ANSWER_TIMEOUT_S = 5.0
MIN_INTERVAL_S = 0.1
# A mesh that is lost is looked for at least so often.
RETRY_S = 1.0
# Waiting does not mend these.
_FINAL = (PermissionDeniedError, UnauthenticatedError)


@dataclass(frozen=True, slots=True)
class Look:
    """What one try to look at the mesh brought: a moment, with rates if there was one before it, or a problem."""

    moment: Moment | None = None
    rates: Rates | None = None
    problem: RequestError | None = None


async def look(client: AsyncClient) -> Moment:
    """Raises errors.RequestError."""
    fleet, traffic = await asyncio.gather(
        client.fleet(timeout_s=ANSWER_TIMEOUT_S), client.traffic(timeout_s=ANSWER_TIMEOUT_S)
    )
    return Moment(fleet, traffic)


async def looks(client: AsyncClient, interval_s: float) -> AsyncGenerator[Look, None]:
    """One look after the other, for ever. Raises UnauthenticatedError, PermissionDeniedError; other problems pass."""
    before: Moment | None = None
    while True:
        try:
            moment = await look(client)
        except _FINAL:
            raise
        except RequestError as problem:
            yield Look(problem=problem)
            await asyncio.sleep(min(interval_s, RETRY_S))
        else:
            yield Look(moment, None if before is None else rates_between(before, moment))
            before = moment
            await asyncio.sleep(interval_s)


class Screen:
    """The whole terminal, or, where standard output is none that can be wiped, one picture after the other. A scope."""

    def __init__(self, console: Output, address: str) -> None:
        self._console = console
        self._picture = Picture(address, problem="connecting")
        self._live = Live(console=console, screen=True, auto_refresh=False) if console.is_screen else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
            self.draw()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def take(self, seen: Look) -> None:
        """What was seen last stays when the mesh is lost."""
        if seen.problem is not None:
            # On one line, whatever it is of.
            problem = " ".join(to_text(seen.problem).split())
            self._picture = dataclasses.replace(self._picture, problem=problem)
        else:
            self._picture = dataclasses.replace(self._picture, moment=seen.moment, rates=seen.rates, problem="")
        self.draw()

    def draw(self) -> None:
        """Also when the terminal has got another size."""
        if self._live is not None:
            self._live.update(dataclasses.replace(self._picture, height=self._console.height), refresh=True)
        else:
            self._console.print(self._picture)
            self._console.print()


async def watch(client: AsyncClient, interval_s: float, *, as_json: bool) -> None:
    """Until Ctrl-C, SIGTERM or the key q. Raises as `looks` does."""
    stop = asyncio.Event()
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(_handled(stop.set, signal.SIGINT, signal.SIGTERM))
        take = _print_json
        if not as_json:
            scopes.enter_context(keys_pressed(lambda key: stop.set() if key in "qQ" else None))
            screen = scopes.enter_context(Screen(Output(), client.address))
            scopes.enter_context(_handled(screen.draw, signal.SIGWINCH))
            take = screen.take
        following = asyncio.create_task(_follow(client, interval_s, take))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            following.cancel()
            # What it raised, if it was not stopped.
            with contextlib.suppress(asyncio.CancelledError):
                await following


async def _follow(client: AsyncClient, interval_s: float, take: Callable[[Look], None]) -> None:
    async with client, contextlib.aclosing(looks(client, interval_s)) as seen:
        async for each in seen:
            take(each)


async def _look_once(client: AsyncClient) -> Moment:
    async with client:
        return await look(client)


def to_json(seen: Look) -> str:
    """One line."""
    if seen.problem is not None:
        problem = seen.problem
        told = {"reason": problem.reason, "message": problem.message, "retry_after_s": problem.retry_after_s}
        return json.dumps({"problem": told})
    assert seen.moment is not None
    data = {"fleet": dataclasses.asdict(seen.moment.fleet), "traffic": dataclasses.asdict(seen.moment.traffic)}
    return json.dumps({**data, "rates": None if seen.rates is None else rates_to_data(seen.rates)})


def _print_json(seen: Look) -> None:
    click.echo(to_json(seen))


@contextlib.contextmanager
def _handled(handler: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@click.command()
@client_options
@click.option(
    "--interval",
    type=FiniteRange(min=MIN_INTERVAL_S, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, and show what there is since the start instead of rates.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def top(client: AsyncClient, interval: float, once: bool, as_json: bool) -> None:
    """Show live what a mesh is asked for, and how it keeps its promises: by class, by tenant, by worker.

    q or Ctrl-C ends it. A mesh that is lost is waited for. TTFT is the time to the first token, a gap the mean time
    between the tokens of a request; for classes both are of the last minute, for tenants since the start.
    """
    if not once:
        run_async(watch(client, interval, as_json=as_json))
        return
    seen = Look(run_async(_look_once(client)))
    if as_json:
        _print_json(seen)
    else:
        Output().print(Picture(client.address, seen.moment))
