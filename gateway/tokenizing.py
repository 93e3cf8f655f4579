"""Inputs to token ids, and ids to texts, without stopping the event loop. Knows nothing of what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .bad_words import spell
from .prompt_input import ChatInput, Input, TextInput, TokenInput
from .served_model import ServedModel
from .turns import Turns

Made = TypeVar("Made")

# Texts below this are tokenized at once: a millisecond on the event loop, less than a hop to a thread costs under load.
_INLINE_CHARS = 1024
_INLINE_IDS = 1024
_INLINE_WORDS = 16
# Up to here it takes some 20 ms. What is longer has a thread of its own, where nobody waits who has less.
_LONG_CHARS = 65_536
_LONG_IDS = 65_536
_THREADS, _LONG_THREADS = 2, 1
# A token stands for one byte at least, but for BOS and a space that a vocabulary puts first. A vocabulary may also want
# Unicode in a normal form: that leaves ASCII as it is, and makes at most 11 bytes of one (U+FDFA in NFKC).
_ADDED_TOKENS = 16
_MOST_GROWTH = 11


class Tokenizing:
    """Tokenizes: short texts at once, others in threads, so that the event loop never waits for one, nor what is of the
    usual length for what is not."""

    def __init__(self, max_prompt_bytes: int) -> None:
        self._max_prompt_bytes = max_prompt_bytes
        self._lane = _Lane(_THREADS, "tokenizer")
        self._long_lane = _Lane(_LONG_THREADS, "tokenizer-long")

    async def encode(
        self, model: ServedModel, given: Input, tenant: str, check: Callable[[int], None] = lambda _: None
    ) -> tuple[str, list[int]]:
        """The text (empty for token ids) and token ids of an input of a tenant. Raises InvalidFieldError on `chat`, and
        what `check` raises: it is told how many tokens a text has at least, before any is looked for."""
        if isinstance(given, TokenInput):
            return "", list(given.token_ids)
        if isinstance(given, TextInput):
            # Here, where nobody has to wait for his turn to hear it.
            check(model.tokenizer.least_tokens(given.text))
        size = _size(given)
        if size <= _INLINE_CHARS and not _spells_special(model, given):
            return self._encode(model, given, check)
        lane = self._lane if size <= _LONG_CHARS else self._long_lane
        return await lane.run(tenant, lambda: self._encode(model, given, check))

    def most_tokens(self, model: ServedModel, given: Input) -> int | None:
        """So many tokens `encode` makes of it at most, by its bytes; None if that takes work to know. Raises as
        `encode`."""
        if isinstance(given, TokenInput):
            return len(given.token_ids)
        if isinstance(given, TextInput):
            text = given.text
        elif _size(given) <= _INLINE_CHARS and not _spells_special(model, given):
            text = model.render_chat(given.chat, max_chars=self._max_chars(given))
        else:
            return None
        return _ADDED_TOKENS + (len(text) if text.isascii() else _MOST_GROWTH * len(text.encode()))

    async def bad_words(self, model: ServedModel, words: Sequence[str], tenant: str) -> tuple[tuple[int, ...], ...]:
        """The token sequences that bad words stand for. Raises InvalidFieldError."""

        def work() -> tuple[tuple[int, ...], ...]:
            return spell(words, lambda text: model.tokenizer.encode(text, add_bos=False))

        # As short as they are, what counts is how many.
        small = sum(map(len, words)) <= _INLINE_CHARS and len(words) <= _INLINE_WORDS
        return work() if small else await self._lane.run(tenant, work)

    async def decode(self, model: ServedModel, token_ids: Sequence[int], tenant: str) -> str:
        """The text of token ids that a tenant has."""
        if len(token_ids) <= _INLINE_IDS:
            return model.tokenizer.decode(token_ids)
        lane = self._lane if len(token_ids) <= _LONG_IDS else self._long_lane
        return await lane.run(tenant, lambda: model.tokenizer.decode(token_ids))

    def close(self) -> None:
        """Lets the threads go."""
        self._lane.close()
        self._long_lane.close()

    def _encode(
        self, model: ServedModel, given: TextInput | ChatInput, check: Callable[[int], None]
    ) -> tuple[str, list[int]]:
        if isinstance(given, ChatInput):
            return model.encode_chat(given.chat, max_chars=self._max_chars(given), check=check)
        return given.text, model.tokenizer.encode(given.text, add_bos=True)

    def _max_chars(self, given: ChatInput) -> int:
        # A template adds a little around each message and tool; what adds more is broken.
        return 2 * self._max_prompt_bytes + 1024 * (len(given.chat.messages) + len(given.chat.tools))


class _Lane:
    """Threads at which tenants take turns."""

    def __init__(self, threads: int, name: str) -> None:
        self._turns = Turns(threads)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, tenant: str, work: Callable[[], Made]) -> Made:
        """What `work` makes, in the tenant's turn."""
        async with self._turns.place(tenant):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Lets the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _spells_special(model: ServedModel, given: TextInput | ChatInput) -> bool:
    """Whether a chat needs the tokenizer that reads special tokens as text; the first use of it takes a second."""
    return isinstance(given, ChatInput) and any(map(model.tokenizer.find_special, given.chat.texts()))


def _size(given: TextInput | ChatInput) -> int:
    if isinstance(given, TextInput):
        return len(given.text)
    return 64 * len(given.chat.messages) + sum(map(len, given.chat.texts()))
