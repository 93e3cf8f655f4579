"""Exceptions that no code here was written for."""

from __future__ import annotations

from typing import Any

import structlog

from tercet.errors import EngineFaultError

log = structlog.get_logger()


def engine_fault(error: Exception, **fields: Any) -> EngineFaultError:
    """What a client is told of one; the log has all of it, and `fields`."""
    log.error("handler_failed", exc_info=error, **fields)
    return EngineFaultError(f"the gateway failed: {type(error).__name__}")
