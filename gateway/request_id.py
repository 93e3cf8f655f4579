"""What a caller may call its request."""

from __future__ import annotations

from tercet.errors import InvalidFieldError

MAX_CHARS = 128


def check_request_id(request_id: str) -> None:
    """Raises InvalidFieldError for what is none; empty is one that has yet to be made."""
    if len(request_id) > MAX_CHARS:
        raise InvalidFieldError(
            f"request_id has {len(request_id)} characters; at most {MAX_CHARS} are allowed", field="request_id"
        )
    if not all("!" <= character <= "~" for character in request_id):
        raise InvalidFieldError("request_id must be printable ASCII without spaces", field="request_id")
