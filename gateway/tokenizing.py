"""Inputs to token ids, and ids to texts, without stopping the event loop. Knows nothing of what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .served_model import ServedModel
from .turns import Turns
from .validate import ChatInput, Input, TextInput, TokenInput

# Texts below this are tokenized at once: a millisecond on the event loop, less than a hop to a thread costs under load.
_INLINE_CHARS = 1024
_INLINE_IDS = 1024
_TOKENIZER_THREADS = 2
# A token stands for one byte at least, but for BOS and a space that a vocabulary puts first. A vocabulary may also want
# Unicode in a normal form: that leaves ASCII as it is, and makes at most 11 bytes of one (U+FDFA in NFKC).
_ADDED_TOKENS = 16
_MOST_GROWTH = 11


class Tokenizing:
    """Tokenizes: short texts at once, long ones in threads, so that the event loop never waits for one. At the threads
    tenants take turns."""

    def __init__(self, max_prompt_bytes: int) -> None:
        self._max_prompt_bytes = max_prompt_bytes
        self._turns = Turns(_TOKENIZER_THREADS)
        self._threads = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    async def encode(self, model: ServedModel, given: Input, tenant: str) -> tuple[str, list[int]]:
        """The text (empty for token ids) and token ids of an input of a tenant. Raises InvalidFieldError on `chat`."""
        if isinstance(given, TokenInput):
            return "", list(given.token_ids)
        if _size(given) <= _INLINE_CHARS and not _spells_special(model, given):
            return self._encode(model, given)
        async with self._turns.place(tenant):
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._encode, model, given)

    def most_tokens(self, model: ServedModel, given: Input) -> int | None:
        """So many tokens `encode` makes of it at most, by its bytes; None if that takes work to know. Raises as
        `encode`."""
        if isinstance(given, TokenInput):
            return len(given.token_ids)
        if isinstance(given, TextInput):
            text = given.text
        elif _size(given) <= _INLINE_CHARS and not _spells_special(model, given):
            text = model.render_chat(given.messages, max_chars=self._max_chars(given))
        else:
            return None
        return _ADDED_TOKENS + (len(text) if text.isascii() else _MOST_GROWTH * len(text.encode()))

    async def decode(self, model: ServedModel, token_ids: Sequence[int], tenant: str) -> str:
        """The text of token ids that a tenant has."""
        if len(token_ids) <= _INLINE_IDS:
            return model.tokenizer.decode(token_ids)
        async with self._turns.place(tenant):
            return await asyncio.get_running_loop().run_in_executor(self._threads, model.tokenizer.decode, token_ids)

    def close(self) -> None:
        """Lets the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _encode(self, model: ServedModel, given: TextInput | ChatInput) -> tuple[str, list[int]]:
        if isinstance(given, TextInput):
            return given.text, model.tokenizer.encode(given.text, add_bos=True)
        return model.encode_chat(given.messages, max_chars=self._max_chars(given))

    def _max_chars(self, given: ChatInput) -> int:
        # A template adds a little around each message; what adds more is broken.
        return 2 * self._max_prompt_bytes + 1024 * len(given.messages)


def _spells_special(model: ServedModel, given: TextInput | ChatInput) -> bool:
    """Whether a chat needs the tokenizer that reads special tokens as text; the first use of it takes a second."""
    return isinstance(given, ChatInput) and any(map(model.tokenizer.find_special, (m.content for m in given.messages)))


def _size(given: TextInput | ChatInput) -> int:
    if isinstance(given, TextInput):
        return len(given.text)
    return sum(64 + len(message.content) for message in given.messages)
