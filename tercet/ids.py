"""Names of things, unique without coordination."""

from __future__ import annotations

import time
import uuid


def new_request_id() -> str:
    """An id for a request whose client gave none."""
    return f"req-{uuid.uuid4().hex}"


def new_process_id(role: str) -> str:
    """An id for this process, such as ``worker-3f2a9c1d``."""
    return f"{role}-{uuid.uuid4().hex[:8]}"


def new_epoch() -> int:
    """A number larger than that of any earlier start on a host whose clock does not run backwards."""
    return time.time_ns() // 1_000
