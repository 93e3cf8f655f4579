"""Why the gateway cancels a request."""

from __future__ import annotations

import enum


class CancelCause(enum.Enum):
    """Who or what ended a request before its end. Values are the words in logs."""

    CLIENT = "client"
    DEADLINE = "deadline"
    STOP_STRING = "stop_string"
    OPERATOR = "operator"
    SLOW_CONSUMER = "slow_consumer"
    SHUTDOWN = "shutdown"
    FAULT = "fault"
