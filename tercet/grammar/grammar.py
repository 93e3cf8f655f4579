"""What a text has to be, as a plain value."""

from __future__ import annotations

import enum
from dataclasses import dataclass

# Blanks between the tokens of JSON. Without a bound, models may write nothing else.
MAX_BLANKS = 16
# The first bytes of a salt are those of all salts of its tenant.
OWNER_BYTES = 8


class Syntax(enum.Enum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    # As GBNF has it, with a rule `root`.
    EBNF = "ebnf"
    # The library's own, JSON: texts, schemas and others put together.
    STRUCTURAL_TAG = "structural_tag"

    @property
    def is_json(self) -> bool:
        """Whether its sentences have no control characters but line ends."""
        return self in (Syntax.JSON_SCHEMA, Syntax.STRUCTURAL_TAG)


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the sentences of `text` are. What is kept of it is found by who has the same `salt` alone, as prefixes are:
    an answer that comes sooner would tell that somebody else had asked for it."""

    syntax: Syntax
    text: str
    salt: bytes = b""

    @property
    def owner(self) -> bytes:
        """The same for all grammars of a tenant."""
        return self.salt[:OWNER_BYTES]
