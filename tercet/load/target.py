"""What a server that is measured looks like to whoever measures it, whatever it speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .ask import Ask
from .record import ServerSample
from .slo import Slo


@dataclass(frozen=True, slots=True)
class Begun:
    """The server has taken the request. None is what it does not say."""

    request_id: str
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A message with tokens; where nobody says how many it counts as one."""

    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """The end as it should be. None is what the server does not say."""

    finish_reason: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None


Event = Begun | Piece | Ended


class AnswerError(Exception):
    """There is no answer, or no more of it. `refused`: the server said no and did nothing."""

    def __init__(self, reason: str, message: str, *, refused: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.refused = refused
        self.retry_after_s = retry_after_s


# The reason of one whose deadline passed, here or there.
DEADLINE = "DEADLINE_PASSED"


@dataclass(frozen=True, slots=True)
class Described:
    """A server by what it says of itself; None is what it does not say."""

    model: str
    revision: str | None
    max_model_len: int | None
    vocab_size: int | None
    # Whether prompts may be token ids.
    takes_tokens: bool
    # Its traffic classes; none where it does not say, or not to this client.
    classes: tuple[str, ...] = ()
    # What else it says, as JSON has it.
    more: Mapping[str, Any] = field(default_factory=dict)


class Target(Protocol):
    """A server. For one event loop."""

    @property
    def name(self) -> str:
        """For people: what it is and where."""

    async def describe(self) -> Described:
        """Raises LoadError if it does not answer, or cannot be measured."""

    def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """Sends a request and reads its answer: Begun, Pieces, Ended. Closed before its end, it cancels the request.
        Raises AnswerError."""

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """The server's tokens of a text; None if it does not say."""

    async def limits(self) -> Mapping[str, Slo]:
        """What its classes promise; none where it does not say, or not to this client."""

    async def look(self) -> ServerSample | None:
        """How it is now; None where it does not say, or not to this client, or not in time."""
