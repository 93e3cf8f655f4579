"""Which traces are recorded. Pure."""

from __future__ import annotations

# The part of a trace id that decides, as other samplers by ratio have it: two that use the same ratio agree.
_BITS = 64


def is_sampled(trace_id: int, ratio: float) -> bool:
    """Whether a new trace is recorded: so many of all, and whatever is recorded at one ratio is so at every larger
    one."""
    return trace_id % (1 << _BITS) < round(ratio * (1 << _BITS))
