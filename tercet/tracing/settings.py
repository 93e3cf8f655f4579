"""The settings of traces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from tercet import setting_check as checks
from tercet.errors import ConfigError
from tercet.setting_field import setting

ContentMode = Literal["off", "sampled"]


def _endpoint(value: str) -> str | None:
    """``http://host:port`` or ``https://host:port``, or nothing."""
    if not value:
        return None
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port and parts.path in ("", "/")
    except ValueError:
        good = False
    return None if good else f"must be http://host:port or https://host:port, is {value!r}"


def _patterns(values: tuple[str, ...]) -> str | None:
    """Regular expressions."""
    for value in values:
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as error:
            return f"{value!r} is no regular expression: {error}"
    return None


@dataclass(frozen=True, slots=True)
class TracesSettings:
    """Which requests are traced, and where their spans go. Read by every service."""

    endpoint: str = setting(
        "", "http(s)://host:port of an OTLP collector, over gRPC; empty: nothing is traced", _endpoint
    )
    sample_ratio: float = setting(
        0.1, "part of the requests that are traced, of those whose clients have not decided it", checks.between(0, 1)
    )
    max_waiting_spans: int = setting(
        8192, "spans of a process that wait for the collector before others are dropped", checks.count(1)
    )
    content: ContentMode = setting(
        "off", "sampled: traces have what traced requests and their answers say, redacted and cut"
    )
    redact: tuple[str, ...] = setting((), "regular expressions of what is taken out of that", _patterns)
    content_max_chars: int = setting(4096, "characters of each message that are kept of it", checks.count(1))
    content_retention_days: int = setting(
        0, "how long the collector is to keep it: an attribute beside it; 0: not said", checks.count(0, 36_500)
    )


# Of the gateway alone: nobody else knows texts.
CONTENT_KEYS = ("traces.content", "traces.redact", "traces.content_max_chars", "traces.content_retention_days")


def traces_problems(settings: TracesSettings) -> list[ConfigError]:
    """What does not fit together: whoever wants texts in traces has to say what is never to be in them, and how long
    they are to be kept."""
    if settings.content == "off":
        return []
    missing: Mapping[str, Any] = {"redact": settings.redact, "content_retention_days": settings.content_retention_days}
    return [
        ConfigError(f"traces.{name}", 'must be set where traces.content is "sampled"')
        for name, value in missing.items()
        if not value
    ]
