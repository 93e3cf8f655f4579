"""One link per address of a worker, begun and given up as addresses come and go.

A live stream is kept even when its address has left the list: DNS is no order to kill.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tercet.dialer import Dialer
from tercet.tls.mesh import MeshIdentity

from .claims import Claims
from .discovery import Discovery, changes, is_name
from .events import AddressesChanged
from .link import WorkerLink
from .loop import Loop


class Links:
    """All links, and the tasks that run them."""

    def __init__(self, discovery: Discovery, loop: Loop, epoch: int, identity: MeshIdentity | None = None) -> None:
        """`epoch` and `identity` are the scheduler's."""
        self._discovery = discovery
        self._loop = loop
        self._epoch = epoch
        self._identity = identity
        self._claims = Claims()
        self._links: dict[str, WorkerLink] = {}
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
        # What the core was told last.
        self._told: tuple[str, ...] = ()

    async def run(self) -> None:
        """Until cancelled. Raises what a bug in a link raised."""
        try:
            self._follow()
            self._start("", self._discovery.run(self._follow))
            while True:
                task = await self._ended.get()
                task.result()
                self._links.pop(self._tasks.pop(task), None)
                # Its address may have come back in the meantime.
                self._follow()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, address: str, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = address
        task.add_done_callback(self._ended.put_nowait)

    def _follow(self) -> None:
        wanted = [address for address in self._discovery.addresses if not is_name(address)]
        difference = changes(self._links, wanted)
        # Before the first hello from a new one.
        self._tell(difference.added)
        for address in wanted:
            if address in self._links:
                self._links[address].retired = False
        for address in difference.added:
            dialer = Dialer(address, "worker", self._identity)
            link = self._links[address] = WorkerLink(dialer, self._loop, self._epoch, self._claims, on_alias=self._tell)
            self._start(address, link.run())
        for address in difference.removed:
            self._links[address].retired = True

    def _tell(self, added: tuple[str, ...] = ()) -> None:
        """Names that have no address yet are told too: it is not known what is behind them."""
        present = dict.fromkeys([*self._discovery.addresses, *self._links])
        addresses = tuple(
            address
            for address in present
            if is_name(address) or address in added or (address in self._links and not self._links[address].alias)
        )
        if addresses != self._told:
            self._told = addresses
            self._loop.post(AddressesChanged(addresses))
