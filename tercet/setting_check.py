"""What values of settings may be. A check returns what is wrong with a value, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tercet.ports import MAX_PORT

Check = Callable[[Any], "str | None"]

# In front of an entry of scheduler.workers: every address that the name has, resolved again and again.
DNS_PREFIX = "dns://"

# Counts that travel between services are 32-bit there.
MAX_COUNT = 2**31 - 1
# Others: what every float tells from its neighbours, so that a part of one can be taken.
MAX_WHOLE = 2**53
# Of an hour of a worker, in any currency.
MAX_PRICE = 1_000_000
# A year: the longest time in seconds.
MAX_SECONDS = 365 * 86_400


def count(low: int, high: int = MAX_COUNT) -> Check:
    """A whole number from `low` to `high`."""
    return lambda value: None if low <= value <= high else f"must be from {low:,} to {high:,}, is {value:,}"


def whole(low: int) -> Check:
    """A whole number from `low` to MAX_WHOLE, for tokens and bytes."""
    return count(low, MAX_WHOLE)


def between(low: float, high: float) -> Check:
    """A number from `low` to `high`."""
    return lambda value: None if low <= value <= high else f"must be from {low:,} to {high:,}, is {value}"


def seconds(low: float) -> Check:
    """A time in seconds from `low` to MAX_SECONDS."""
    return between(low, MAX_SECONDS)


def fraction(value: float) -> str | None:
    """Above 0, at most 1."""
    return None if 0 < value <= 1 else f"must be above 0 and at most 1, is {value}"


def port(value: int) -> str | None:
    """A port to listen on; 0 is any."""
    return None if 0 <= value <= MAX_PORT else f"must be a port, 0 to 65535, is {value}"


def not_empty(value: str) -> str | None:
    """Some text."""
    return None if value.strip() else "must not be empty"


def _is_address(value: str) -> bool:
    host, _, number = value.rpartition(":")
    # Without brackets nobody knows where an IPv6 address ends and its port begins.
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")
    is_host = bool(bare) and not set(bare) & set("/[] ")
    return is_host and number.isascii() and number.isdigit() and 0 < int(number) <= MAX_PORT


def address(value: str) -> str | None:
    """``host:port``, IPv6 in brackets."""
    return None if _is_address(value) else f"must be host:port, is {value!r}"


def addresses(values: tuple[str, ...]) -> str | None:
    """At least one of ``host:port`` and ``dns://name:port``."""
    if not values:
        return "must name at least one host:port"
    wrong = next((value for value in values if not _is_address(value.removeprefix(DNS_PREFIX))), None)
    return None if wrong is None else f"must be host:port or {DNS_PREFIX}name:port, is {wrong!r}"


def peers(values: tuple[str, ...]) -> str | None:
    """Any number of ``host:port``."""
    return next((problem for value in values if (problem := address(value)) is not None), None)


def schedulers(values: tuple[str, ...]) -> str | None:
    """At least one ``host:port``, each once."""
    if not values:
        return "must name at least one host:port"
    return "must name each address once" if len(set(values)) < len(values) else peers(values)


def prices(values: tuple[str, ...]) -> str | None:
    """Any number of ``NAME=PRICE``, each name once."""
    names = [value.rpartition("=")[0] for value in values]
    for value, name in zip(values, names, strict=True):
        if not name or not _is_price(value.rpartition("=")[2]):
            return f"must be MODEL=PRICE, a price from 0 to {MAX_PRICE:,}, is {value!r}"
    return "must name each model once" if len(set(names)) < len(names) else None


def _is_price(text: str) -> bool:
    try:
        return 0 <= float(text) <= MAX_PRICE
    except ValueError:
        return False


def block_size(value: int) -> str | None:
    """Tokens per KV block, or 0."""
    if value == 0 or (8 <= value <= 256 and value & (value - 1) == 0):
        return None
    return f"must be 0 (automatic) or a power of two from 8 to 256, is {value}"
