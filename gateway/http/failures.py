"""Errors as OpenAI's clients know them: a status, a body, and when to ask again. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tercet.errors import RequestError

_INVALID = "invalid_request_error"
_BUSY = "rate_limit_error"
_TIMEOUT = "timeout_error"
_UNAVAILABLE = "service_unavailable_error"

# By reason: the status, and what OpenAI calls the kind. 499 is what proxies say of a request that was cancelled.
KINDS: Mapping[str, tuple[int, str]] = {
    "INVALID_FIELD": (400, _INVALID),
    "PROMPT_TOO_LONG": (400, _INVALID),
    "KV_NEVER_FITS": (400, _INVALID),
    "ANSWER_TOO_LARGE": (400, _INVALID),
    "UNAUTHENTICATED": (401, "authentication_error"),
    "PERMISSION_DENIED": (403, "permission_error"),
    "MODEL_NOT_FOUND": (404, _INVALID),
    "DUPLICATE_REQUEST": (409, _INVALID),
    "TENANT_QUOTA": (429, _BUSY),
    "QUEUE_FULL": (429, _BUSY),
    "QUEUE_EXPIRED": (429, _BUSY),
    "SLO_UNREACHABLE": (429, _BUSY),
    "SLOW_CONSUMER": (408, _TIMEOUT),
    "DEADLINE_PASSED": (504, _TIMEOUT),
    "DEADLINE_UNREACHABLE": (504, _TIMEOUT),
    "NO_WORKER": (503, _UNAVAILABLE),
    "STORE_LOST": (503, _UNAVAILABLE),
    "LEDGER_LOST": (503, _UNAVAILABLE),
    "GATEWAY_LOST": (503, _UNAVAILABLE),
    "SCHEDULER_LOST": (503, _UNAVAILABLE),
    "WORKER_LOST": (503, _UNAVAILABLE),
    "DRAINING": (503, _UNAVAILABLE),
    "REVISION_MISMATCH": (503, _UNAVAILABLE),
    "SWITCHED_OFF": (501, "server_error"),
    "REQUEST_CANCELLED": (499, "request_cancelled_error"),
    "ENGINE_FAULT": (500, "server_error"),
}

# The codes that clients of OpenAI look for; all others are the reason in lower case.
_KNOWN_CODES = {"PROMPT_TOO_LONG": "context_length_exceeded", "UNAUTHENTICATED": "invalid_api_key"}

# A field of tercet.v1 is in HTTP the parameter of its last name, but for these.
_PARAMETERS = {
    "stop.strings": "stop",
    "stop.token_ids": "stop_token_ids",
    "sampling.logprobs": "logprobs",
    "token_ids": "prompt",
    "token_ids.ids": "prompt",
    "chat": "messages",
    "chat.forced_tool": "tool_choice",
    "chat.template_kwargs": "chat_template_kwargs",
    "traffic_class": "x-tercet-class",
    "request_id": "x-request-id",
}
_IS_PATH = re.compile(r"[._\[]")
# What is about a function stands in one.
_OF_FUNCTIONS = re.compile(r"((?:tools|tool_calls)\[\d+\])\.(name|description|parameters|arguments)$")


@dataclass(frozen=True, slots=True)
class Failure:
    """One error to answer with."""

    status: int
    kind: str
    code: str
    message: str
    parameter: str | None = None
    retry_after_ms: int | None = None

    @property
    def body(self) -> bytes:
        """OpenAI's JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.parameter, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's clients ask again by themselves, unless they are told not to: what has begun is not begun again."""
        headers = {"x-should-retry": "false" if self.retry_after_ms is None else "true"}
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_ms / 1000))
            headers["retry-after-ms"] = str(self.retry_after_ms)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


class HttpError(Exception):
    """What is wrong with a request before it is one of tercet.v1."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(status, _TIMEOUT if status == 408 else _INVALID, code, message)
        self.headers = headers or {}


def failure_of(error: RequestError, renamed: Mapping[str, str] | None = None) -> Failure:
    """A typed error in HTTP. `renamed` has the parameters that this request calls otherwise, by their usual names."""
    status, kind = KINDS[error.reason]
    field = error.metadata.get("field", "model" if error.reason == "MODEL_NOT_FOUND" else "")
    parameter = _parameter(field)
    parameter = (renamed or {}).get(parameter, parameter)
    return Failure(
        status=status,
        kind=kind,
        code=_KNOWN_CODES.get(error.reason, error.reason.lower()),
        # Paths are not words of a sentence: there they can be told from the rest.
        message=error.message.replace(field, parameter) if _IS_PATH.search(field) else error.message,
        parameter=parameter or None,
        retry_after_ms=error.retry_after_ms,
    )


def _parameter(field: str) -> str:
    name = field.partition("[")[0]
    if name in _PARAMETERS:
        return _PARAMETERS[name]
    if name.startswith("structured_output."):
        return "structured_output"
    if field.startswith("chat."):
        return _OF_FUNCTIONS.sub(r"\1.function.\2", field.removeprefix("chat."))
    for prefix in ("sampling.", "stop."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return field
