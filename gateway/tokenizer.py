"""Text to token ids and back: a model's tokenizer from its Hugging Face directory or its GGUF file.

Special tokens written out in a prompt become those tokens, as in `transformers`: whoever sends a raw prompt owns its
structure. The text of chat messages is data; see `ServedModel.encode_chat`. Knows neither requests nor streams.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from tercet.errors import ModelError
from tercet.token_pieces import Spelling, character_of_byte, spelling_of

from .detokenizer import Detokenizer
from .token_reach import token_reach


class Tokenizer:
    """Tokens of one model. Safe to use from several threads.

    `bos_token_id` goes before a prompt and `eos_token_id` behind it, unless None (and not around a chat: its template
    writes what the model wants).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        spelling: Spelling,
        strip_leading_space: bool,
        special_token_ids: frozenset[int],
    ) -> None:
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.special_token_ids = special_token_ids
        self._backend = backend
        self._spelling = spelling
        self._reach = token_reach(backend, character_of_byte() if spelling is Spelling.BYTE_LEVEL else None)
        self._strip_leading_space = strip_leading_space
        self._added = {token_id: str(token.content) for token_id, token in backend.get_added_tokens_decoder().items()}
        self._pieces: dict[int, str | bytes] = {}
        specials = [self._added[i] for i in special_token_ids if self._added.get(i)]
        self._special_pattern = re.compile(longest_of(specials)) if specials else None
        self._literal: tokenizers.Tokenizer | None = None
        self._literal_lock = threading.Lock()

    @property
    def size(self) -> int:
        """Tokens, added ones included; a model may have more rows than that."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def to_json(self) -> str:
        """The text of a tokenizer.json that says the same, but for what goes around a prompt."""
        return str(self._backend.to_str())

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str, *, add_bos: bool) -> list[int]:
        """Token ids of a text, with `add_bos` of a prompt that is that text: with what goes around it.

        Releases the GIL; takes about half a second per megabyte.
        """
        ids = _encode(self._backend, text)
        if add_bos and self.bos_token_id is not None:
            ids.insert(0, self.bos_token_id)
        if add_bos and self.eos_token_id is not None:
            ids.append(self.eos_token_id)
        return ids

    def least_tokens(self, text: str) -> int:
        """`encode` makes at least so many of a text; 0 if that takes work to know."""
        return 0 if self._reach is None else self._reach.least_tokens(text)

    def find_special(self, text: str) -> re.Match[str] | None:
        """The first special token written out in a text, if any."""
        return self._special_pattern.search(text) if self._special_pattern else None

    def split_special(self, text: str) -> Iterable[tuple[str, int | None]]:
        """Cuts a text at the special tokens written in it: (text, None) and (token, id) in order, no empty texts."""
        position = 0
        for match in self._special_pattern.finditer(text) if self._special_pattern else ():
            if match.start() > position:
                yield text[position : match.start()], None
            yield match.group(), self.token_to_id(match.group())
            position = match.end()
        if position < len(text):
            yield text[position:], None

    def encode_literal(self, text: str) -> list[int]:
        """Token ids of a text in which special tokens written out are only text."""
        with self._literal_lock:
            if self._literal is None:
                # A second instance: the switch is a property of the whole tokenizer, not of one call.
                self._literal = tokenizers.Tokenizer.from_str(self._backend.to_str())
                self._literal.encode_special_tokens = True
        return _encode(self._literal, text)

    def piece(self, token_id: int) -> str | bytes:
        """What a token adds to the text: bytes if they are not valid UTF-8 by themselves. Special tokens add nothing,
        nor do ids without a token."""
        found = self._pieces.get(token_id)
        if found is None:
            found = self._pieces[token_id] = self._make_piece(token_id)
        return found

    def spelling(self, token_id: int) -> str:
        """A token as the vocabulary spells it; empty for an id without one."""
        return self._added.get(token_id) or self._backend.id_to_token(token_id) or ""

    def detokenizer(self, prompt_token_ids: Iterable[int] = (), shown: Iterable[str] = ()) -> Detokenizer:
        """A decoder for the tokens after a prompt: its text is what they add to the text of the prompt. Of special
        tokens those that are `shown` add theirs."""
        strip = self._strip_leading_space and not any(self.piece(token_id) for token_id in prompt_token_ids)
        texts = {token_id: token for token in shown if (token_id := self.token_to_id(token)) in self.special_token_ids}
        if not texts:
            return Detokenizer(self.piece, strip_leading_space=strip)
        return Detokenizer(lambda token_id: texts.get(token_id) or self.piece(token_id), strip_leading_space=strip)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of whole token ids, without special tokens; bytes that are no UTF-8 become U+FFFD."""
        detokenizer = self.detokenizer()
        return "".join([*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()])

    def _make_piece(self, token_id: int) -> str | bytes:
        if token_id in self.special_token_ids:
            return ""
        if token_id in self._added:
            return self._added[token_id]
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return ""
        return self._spelling.piece(token)


def longest_of(words: Iterable[str]) -> str:
    """A regular expression for the longest of some words at a place.

    It shares the words' beginnings: a model may have a thousand special tokens, and an alternation would try each one
    at each place, with the GIL held.
    """
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern_of(tree)


def _pattern_of(tree: Mapping[str, Any]) -> str:
    # A chain without branches is walked in a loop: tokens are long, and the recursion is not to be.
    chain = ""
    while len(tree) == 1 and "" not in tree:
        ((character, tree),) = tree.items()
        chain += re.escape(character)
    branches = [re.escape(character) + _pattern_of(tree[character]) for character in sorted(tree) if character]
    if not branches:
        return chain
    return f"{chain}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    # Of the ways to encode, this one alone holds the GIL for milliseconds only, however long the text.
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def from_hugging_face(
    text: str, config: Mapping[str, Any], *, source: str, added_special: Iterable[str] = ()
) -> Tokenizer:
    """The tokenizer of a tokenizer.json (`text`) and a tokenizer_config.json (`config`).

    Whether BOS goes before a prompt and EOS behind it: `add_bos_token` and `add_eos_token` of the config, else what the
    post-processor of the tokenizer does. `source` names the file in errors. Raises ModelError.
    """
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise ModelError(f"model: {source} is not a tokenizer the `tokenizers` package can read: {error}") from error
    if backend.decoder is None:
        raise ModelError(f"model: {source} has no decoder; without one its tokens cannot be turned into text")
    try:
        spelling, strip = spelling_of(json.loads(backend.decoder.__getstate__()))
    except ValueError as error:
        raise ModelError(f"model: {source} has {error}") from error
    backend.no_truncation()
    backend.no_padding()
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    special |= {i for token in added_special if (i := backend.token_to_id(token)) is not None}
    before, behind = _around(backend)
    return Tokenizer(
        backend,
        bos_token_id=_end_of_prompt(backend, config, "bos", before[:1]),
        eos_token_id=_end_of_prompt(backend, config, "eos", behind[-1:]),
        spelling=spelling,
        strip_leading_space=strip,
        special_token_ids=frozenset(special),
    )


def token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the post-processor puts before a text and behind it."""
    for text in ("a", "0", "."):
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        whole: list[int] = backend.encode(text, add_special_tokens=True).ids
        for begin in range(len(whole) - len(ids) + 1):
            if ids and whole[begin : begin + len(ids)] == ids:
                return whole[:begin], whole[begin + len(ids) :]
    # A vocabulary without these: all of it before, as is most usual.
    return backend.encode("", add_special_tokens=True).ids, []


def _end_of_prompt(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], which: str, found: Sequence[int]
) -> int | None:
    """The token at one end of a prompt, `which` bos or eos; `found` is what the post-processor has there, if it has."""
    name = token_text(config.get(f"{which}_token"))
    named: int | None = backend.token_to_id(name) if name is not None else None
    add = config.get(f"add_{which}_token")
    if add is None:
        # Authoritative where the config does not say.
        return found[0] if found and named in (None, found[0]) else None
    return named if add else None
