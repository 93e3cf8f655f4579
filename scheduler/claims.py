"""By which of its addresses the scheduler knows each worker.

A worker obeys the last stream that its scheduler opens. Two addresses of one worker (IPv4 and IPv6, a name and what it
stands for), each dialled without a look at the other, would therefore end each other's streams for ever.
"""

from __future__ import annotations


class Claims:
    """Each worker belongs to one address at a time, and each address has at most one worker."""

    def __init__(self) -> None:
        self._holders: dict[str, str] = {}

    def claim(self, worker_id: str, address: str) -> str:
        """The address that has the worker; `address` itself if no other did."""
        holder = self._holders.get(worker_id)
        if holder is not None and holder != address:
            return holder
        self.release(address)
        self._holders[worker_id] = address
        return address

    def free(self, worker_id: str) -> bool:
        """Whether no address has the worker."""
        return worker_id not in self._holders

    def release(self, address: str) -> None:
        """The worker at `address` is gone, or can be reached there no more."""
        self._holders = {worker_id: holder for worker_id, holder in self._holders.items() if holder != address}
