"""One request to be sent: all that is decided about it before the clock starts."""

from __future__ import annotations

from dataclasses import dataclass

from tercet.messages import ChatMessage

from .principals import Principal

# A text to continue, its tokens, or a chat.
Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """When a client loses interest: so many seconds after sending, unless the first token comes before; or, if that is
    None, when it has read so many tokens."""

    before_first_s: float | None
    after_tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """`due_s` is in seconds from the start of the point; None in a closed loop, where it is due when it is its turn."""

    index: int
    due_s: float | None
    principal: Principal
    prompt: Prompt
    # None: its server will say.
    prompt_tokens: int | None
    max_tokens: int
    seed: int
    ignore_eos: bool = True
    temperature: float = 0.0
    # Its deadline, from sending.
    timeout_s: float | None = None
    cancel: Cancel | None = None
    # How fast a slow reader reads; None: as fast as it comes.
    read_tokens_per_s: float | None = None
