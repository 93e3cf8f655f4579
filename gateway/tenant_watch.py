"""The tenants as last read from their store, read again all the time. Knows no calls and no database."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from tercet.errors import StoreError
from tercet.tenants.directory import Directory

log = structlog.get_logger()

# A key that was revoked is refused within a second; so a change is seen well before.
POLL_S = 0.2
# How often it is looked whether the store is whole: a file that is damaged can no longer be changed, so reads alone
# would find the last state in it for ever.
CHECK_S = 5.0
# A store that does not answer for so long does not let a gateway start.
START_LIMIT_S = 10.0


class TenantWatch:
    """What the store says, at most POLL_S and a read old. `on_change` is called, in the event loop, with every new
    state.

    `read` blocks: it gives the state, None if that is still the one of the revision it is given, and raises StoreError.
    So does `check`, if the store is damaged. While the store cannot be read, or is damaged, the last state holds, for
    `stale_s` seconds. Then it is `stale`.
    """

    def __init__(
        self,
        read: Callable[[int | None], Directory | None],
        stale_s: float,
        on_change: Callable[[Directory], None],
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._read_store = read
        self._check_store = check
        # None: it has to be before anything is read.
        self._checked_at: float | None = None
        self._stale_s = stale_s
        self._on_change = on_change
        self._clock = clock
        self._lost = False
        self._directory: Directory | None = None
        self._read_at = clock()

    @property
    def directory(self) -> Directory:
        """The last state. `start` comes first."""
        assert self._directory is not None
        return self._directory

    @property
    def lost(self) -> bool:
        """Whether the last attempt to read the store has failed."""
        return self._lost

    @property
    def stale(self) -> bool:
        """Whether the store has been out of reach for too long, be it that it fails or that it does not answer."""
        return self._clock() - self._read_at > self._stale_s

    async def start(self) -> None:
        """Reads the first state. Raises StoreError, also if that takes longer than START_LIMIT_S."""
        try:
            await asyncio.wait_for(self._read(), START_LIMIT_S)
        except asyncio.TimeoutError:
            raise StoreError(f"has not answered for {START_LIMIT_S:g} s") from None

    async def run(self) -> None:
        """Reads again and again until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._read()
            except Exception as error:
                # Whatever it is, the last state still holds for a while, and the next read may succeed.
                if not self._lost:
                    unexpected = None if isinstance(error, StoreError) else error
                    log.error(
                        "tenants_store_lost", problem=str(error), stale_seconds=self._stale_s, exc_info=unexpected
                    )
                self._lost = True

    async def _read(self) -> None:
        known = None if self._directory is None else self._directory.revision
        began_at = self._clock()
        checks = self._checked_at is None or began_at >= self._checked_at + CHECK_S

        def look() -> Directory | None:
            if checks:
                self._check_store()
            return self._read_store(known)

        found = await _in_thread(look)
        if checks:
            # Only now: one that was found damaged is looked at each time.
            self._checked_at = began_at
        if found is not None:
            # First: what fails there is to be told again.
            self._on_change(found)
            self._directory = found
            log.info("tenants_read", revision=found.revision, tenants=len(found.tenants), keys=len(found.keys))
        # From the beginning: a change during the read may not be in it.
        self._read_at = began_at
        if self._lost:
            log.info("tenants_store_found")
            self._lost = False


async def _in_thread(read: Callable[[], Directory | None]) -> Directory | None:
    """What `read` gives or raises. Whatever the database waits for, the event loop does not; nor does the end of the
    process, as it would for a thread of an executor."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Directory | None] = loop.create_future()

    def work() -> None:
        try:
            found = read()
        except Exception as error:
            tell(answer.set_exception, error)
        else:
            tell(answer.set_result, found)

    def tell(settle: Callable[[Any], None], value: object) -> None:
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else settle(value))

    threading.Thread(target=work, name="tenants", daemon=True).start()
    return await answer
