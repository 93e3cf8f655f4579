"""What may be seen of texts: what patterns match is taken out, the rest is cut. Knows no spans' way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from .span import Message

REDACTED = "[REDACTED]"
# Behind the cut so many characters are searched, too: half of a secret is one.
BEYOND_CHARS = 4096


class Redactor:
    """`patterns` are regular expressions, which see `max_chars` of each text and BEYOND_CHARS more. Of what they match
    nothing is kept, unless it is longer than that."""

    def __init__(self, patterns: Iterable[str], max_chars: int) -> None:
        self._patterns = [re.compile(each) for each in patterns]
        self._max_chars = max_chars

    def text(self, text: str) -> str:
        """A text without what must not be seen."""
        window = self._max_chars + BEYOND_CHARS
        seen = text[:window]
        for pattern in self._patterns:
            seen = pattern.sub(REDACTED, seen)
        if len(text) >= window:
            # Where it was cut may be half of what a pattern would match.
            seen = seen[:-BEYOND_CHARS]
        return seen[: self._max_chars]

    def messages(self, messages: Iterable[Message]) -> str:
        """JSON of messages, in the form that the conventions for generative AI have for them."""
        data = [{"role": each.role, "parts": [{"type": "text", "content": self.text(each.text)}]} for each in messages]
        return json.dumps(data, ensure_ascii=False)
