"""Which addresses the workers have now: those written down, and those that DNS names have.

Resolves names and notices changes; dials nobody.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog

from tercet.setting_check import DNS_PREFIX

# A resolver that says nothing for so long counts as failing; the lookup itself goes on.
LOOKUP_SECONDS = 5.0

# Host and port to addresses. Raises OSError.
Resolve = Callable[[str, int], Awaitable[Iterable[str]]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new in a list of addresses, and what is gone, in order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def changes(old: Iterable[str], new: Iterable[str]) -> Changes:
    """How `new` differs from `old`, each address once."""
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    return Changes(
        tuple(address for address in after if address not in before),
        tuple(address for address in before if address not in after),
    )


def is_name(entry: str) -> bool:
    """Whether an entry of scheduler.workers is a name to resolve, and no address."""
    return entry.startswith(DNS_PREFIX)


async def resolve(host: str, port: int) -> list[str]:
    """``host:port`` of every address of a name, IPv4 and IPv6, as the event loop's resolver finds them.

    Raises OSError if there is none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = {(family, str(address[0])) for family, _, _, _, address in found}
    # Resolvers turn the order around to spread load; here a change of order is no news.
    return [f"[{each}]:{port}" if family == socket.AF_INET6 else f"{each}:{port}" for family, each in sorted(hosts)]


class Discovery:
    """The entries of scheduler.workers, and the addresses behind them.

    A name that fails to resolve keeps the addresses it had. One that never had any stands in the list itself: it may be
    the name of anything, so nobody can say what the mesh does not serve.
    """

    def __init__(
        self,
        entries: Iterable[str],
        interval_s: float,
        resolve: Resolve = resolve,
        lookup_s: float = LOOKUP_SECONDS,
    ) -> None:
        self._interval_s = interval_s
        self._resolve = resolve
        self._lookup_s = lookup_s
        self._log = structlog.get_logger()
        # By entry, in the order of configuration.
        self._found: dict[str, tuple[str, ...]] = {entry: (entry,) for entry in entries}
        # Why a name does not resolve now.
        self._problems: dict[str, str] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each once, in the order of configuration; names without an address are among them."""
        return tuple(dict.fromkeys(address for found in self._found.values() for address in found))

    async def run(self, on_change: Callable[[], None]) -> None:
        """Resolves every name each `interval_s` seconds, until cancelled; returns at once if there is none."""
        await asyncio.gather(*(self._watch(entry, on_change) for entry in self._found if is_name(entry)))

    async def _watch(self, entry: str, on_change: Callable[[], None]) -> None:
        host, _, port = entry.removeprefix(DNS_PREFIX).rpartition(":")
        lookup: asyncio.Task[list[str]] | None = None
        try:
            while True:
                # A lookup that hangs is not started twice: it holds a thread of the resolver.
                lookup = lookup or asyncio.create_task(self._look_up(host.strip("[]"), int(port)))
                await asyncio.wait({lookup}, timeout=self._lookup_s)
                if lookup.done():
                    self._note(entry, lookup, on_change)
                    lookup = None
                else:
                    self._failed(entry, f"no answer within {self._lookup_s:g} s")
                await asyncio.sleep(self._interval_s)
        finally:
            if lookup is not None:
                lookup.cancel()

    async def _look_up(self, host: str, port: int) -> list[str]:
        return list(await self._resolve(host, port))

    def _note(self, entry: str, lookup: asyncio.Task[list[str]], on_change: Callable[[], None]) -> None:
        try:
            found = tuple(lookup.result())
        # A label too long for IDNA is a UnicodeError.
        except (OSError, UnicodeError) as error:
            self._failed(entry, str(error))
            return
        if not found:
            self._failed(entry, "it has no address")
            return
        recovered = self._problems.pop(entry, None) is not None
        before = () if self._found[entry] == (entry,) else self._found[entry]
        difference = changes(before, found)
        if recovered or difference.added or difference.removed:
            self._log.info("name_resolved", name=entry, added=difference.added, removed=difference.removed)
        if difference.added or difference.removed:
            self._found[entry] = found
            on_change()

    def _failed(self, entry: str, problem: str) -> None:
        if self._problems.get(entry) != problem:
            self._problems[entry] = problem
            kept = 0 if self._found[entry] == (entry,) else len(self._found[entry])
            self._log.warning("name_not_resolved", name=entry, problem=problem, addresses_kept=kept)
