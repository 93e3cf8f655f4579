"""Names of things, unique without coordination."""

from __future__ import annotations

import secrets
import string
import time
import uuid

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def new_request_id() -> str:
    """An id for a request whose client gave none."""
    return f"req-{uuid.uuid4().hex}"


def new_tool_call_id() -> str:
    """An id for a call of a tool: 9 letters and digits, as the strictest of chat templates want it."""
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))


def new_process_id(role: str) -> str:
    """An id for this process, such as ``worker-3f2a9c1d``."""
    return f"{role}-{uuid.uuid4().hex[:8]}"


def new_epoch() -> int:
    """A number larger than that of any earlier start on a host whose clock does not run backwards."""
    return time.time_ns() // 1_000
