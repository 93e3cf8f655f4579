"""A bug in what makes spans costs spans, and nothing else."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ParamSpec

import structlog

log = structlog.get_logger()

Parameters = ParamSpec("Parameters")

# Between two lines about one function.
TELL_SECONDS = 60.0


def harmless(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The function, which ends early instead of raising an Exception, and tells the log of it, though not each time."""
    told_at = -TELL_SECONDS

    @functools.wraps(function)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        nonlocal told_at
        try:
            function(*args, **kwargs)
        except Exception:
            if time.monotonic() - told_at >= TELL_SECONDS:
                told_at = time.monotonic()
                log.exception("tracing_failed", where=function.__qualname__)

    return wrapper
