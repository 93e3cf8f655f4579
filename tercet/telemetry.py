"""Logging: one structlog set-up for all services. Prompts and outputs never reach a log."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from typing import Literal, TextIO, cast

import structlog

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_CONSOLE_LEVEL = re.compile(r"\S+ \[(\w+) *\] ")


def configure_logging(
    service: str, level: LogLevel = "info", fmt: LogFormat = "console", to: TextIO | None = None
) -> None:
    """Sends log events of this process to `to`, by default standard error, with `service` bound to each."""
    renderer: structlog.typing.Processor
    if fmt == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        # The renderer's own tracebacks show local variables, prompts among them.
        renderer = structlog.dev.ConsoleRenderer(
            colors=to is None and sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if fmt == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Each line is one write.
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Lossy(sys.stderr)) if to is None else to),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


def dropped_line(fmt: LogFormat, count: int) -> str:
    """The line that says how many others could not be written."""
    if fmt == "json":
        return json.dumps({"event": "log_lines_dropped", "level": "warning", "lines": count}) + "\n"
    return f"- [warning  ] log_lines_dropped lines={count}\n"


class _Lossy(io.TextIOBase):
    """A stream that drops what cannot be written: a full disk or a reader that left must not end a service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def level_of(line: str) -> str:
    """The level of a line that this set-up wrote to a file, in either format; "" for any other line."""
    if line.startswith("{"):
        try:
            event = json.loads(line)
        except ValueError:
            return ""
        return str(event.get("level", ""))
    match = _CONSOLE_LEVEL.match(line)
    return match.group(1) if match else ""
