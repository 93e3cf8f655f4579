"""What `tercet up` and `tercet demo` show of their services: one line each."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tercet.mesh_layout import stop_order
from tercet.mesh_processes import ServiceStatus

_STYLES = {"starting": "yellow", "ready": "green", "stopping": "yellow", "stopped": "dim", "failed": "bold red"}


class StatusBoard:
    """One line per process: updated in place on a terminal, one printed line per change elsewhere. A scope."""

    def __init__(self, console: Console, *, in_place: bool) -> None:
        self._console = console
        self._rows: dict[str, ServiceStatus] = {}
        self._live = Live(console=console, auto_refresh=False) if in_place else None

    def __enter__(self) -> StatusBoard:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: ServiceStatus) -> None:
        """Takes a change of status."""
        self._rows[status.name] = status
        if self._live is None:
            self._console.print(_line(status), soft_wrap=True)
        else:
            rows = [_line(self._rows[name]) for name in sorted(self._rows, key=stop_order)]
            self._live.update(Text("\n").join(rows), refresh=True)


def _line(status: ServiceStatus) -> Text:
    text = Text(f"{status.name:<10}")
    text.append(f"{status.state:<9}", style=_STYLES[status.state])
    text.append(f"{status.address:<22}")
    text.append(f"pid {status.pid}")
    if status.state == "ready":
        text.append(f"  after {status.seconds:.1f} s")
    if status.detail:
        text.append(f"  {status.detail}")
    return text
