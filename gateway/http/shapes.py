"""The answers of the two endpoints that generate, whole and in pieces, as OpenAI shapes them. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

from ..detokenizer import Detokenizer
from ..output import Finish, ToolCallDelta
from ..prompt_logprobs import PromptPart
from ..sequence_end import EndReason
from ..served_model import ServedModel
from ..stream import Delta
from ..summary import Summary
from ..tokenizer import Tokenizer
from .long_json import Rows
from .token_text import chat_logprobs, completion_logprobs, echoed_logprobs, prompt_logprobs

Json = dict[str, Any]


class Shape(ABC):
    """One call's answers. `created` is in seconds since the epoch; an index is that of a choice."""

    id_prefix: ClassVar[str]
    piece_object: ClassVar[str]
    whole_object: ClassVar[str]

    def __init__(
        self, request_id: str, model: ServedModel, created: int, *, include_usage: bool, logprobs: int | None,
        prompt_logprobs: int | None,
    ):  # fmt: skip
        """`logprobs` and `prompt_logprobs`: of how many of the likeliest tokens, None: of none, nor of the token."""
        self.request_id = request_id
        self._head = {"id": f"{self.id_prefix}-{request_id}", "created": created, "model": model.name}
        self._revision = model.revision
        self._tokenizer = model.tokenizer
        self._include_usage = include_usage
        self._logprobs = logprobs is not None
        self._num_logprobs = logprobs or 0
        self._num_prompt_logprobs = prompt_logprobs
        # Of the prompts that choices have, by index, where they are asked for by themselves.
        self._prompt_logprobs: dict[int, Rows] = {}

    def event(self, *choices: Json) -> Json:
        """A piece of the answer."""
        event = self._with_head(self.piece_object, choices)
        if self._include_usage:
            event["usage"] = None
        return event

    def usage_event(self, summaries: Sequence[Summary]) -> Json | None:
        """The last piece, where it was asked for."""
        return {**self._with_head(self.piece_object, ()), "usage": usage(summaries)} if self._include_usage else None

    def whole(self, choices: Sequence[Json], summaries: Sequence[Summary]) -> Json:
        """The answer at once."""
        return {**self._with_head(self.whole_object, choices), "usage": usage(summaries)}

    @abstractmethod
    def opening(self, index: int) -> Json | None:
        """What a choice begins with, before there is anything of it; None: nothing."""

    def note_prompt(self, choices: range, token_ids: Sequence[int], parts: Sequence[PromptPart]) -> None:
        """Takes the logprobs of the prompt of these choices, before anything of them is asked for."""
        if self._num_prompt_logprobs is not None:
            shown = prompt_logprobs(self._tokenizer, token_ids, parts, self._num_prompt_logprobs)
            self._prompt_logprobs.update(dict.fromkeys(choices, shown))

    @abstractmethod
    def piece(self, index: int, delta: Delta) -> Json | None:
        """A choice with more of it; None: its tokens show nothing."""

    @abstractmethod
    def closing(self, index: int, finish: Finish) -> Json:
        """A choice with its end."""

    @abstractmethod
    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Json:
        """A choice with all of it."""

    def _with_head(self, kind: str, choices: Sequence[Json]) -> Json:
        return {**self._head, "object": kind, "system_fingerprint": self._revision, "choices": list(choices)}


class ChatShape(Shape):
    """/v1/chat/completions."""

    id_prefix = "chatcmpl"
    piece_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def whole(self, choices: Sequence[Json], summaries: Sequence[Summary]) -> Json:
        """The answer at once."""
        return {**super().whole(choices, summaries), "prompt_logprobs": self._prompt_logprobs.get(0)}

    def opening(self, index: int) -> Json | None:
        """The role, which clients want first."""
        return self._choice(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, delta: Delta) -> Json | None:
        """A choice with more of its text, or of the calls that it makes."""
        said: Json = {"content": delta.text} if delta.text else {}
        if delta.tool_calls:
            said["tool_calls"] = [_call_piece(call) for call in delta.tool_calls]
        if not said and not self._logprobs:
            return None
        return {**self._choice(index, said), "logprobs": self._shown([delta])}

    def closing(self, index: int, finish: Finish) -> Json:
        """A choice with its end."""
        return {**self._choice(index, {}), **_ended(finish)}

    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Json:
        """A choice with all of it."""
        text = "".join(delta.text for delta in deltas)
        calls = _calls(deltas)
        message: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {"index": index, "message": message, "logprobs": self._shown(deltas), **_ended(finish)}

    def _choice(self, index: int, delta: Json) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _shown(self, deltas: Sequence[Delta]) -> Json | None:
        if not self._logprobs:
            return None
        ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return chat_logprobs(self._tokenizer, ids, [each for delta in deltas for each in delta.logprobs])


class CompletionShape(Shape):
    """/v1/completions. `prompts` are the texts that choices begin with, by index; empty: they do not. With
    `prompt_alone` they end there, whatever was generated."""

    id_prefix = "cmpl"
    piece_object = whole_object = "text_completion"

    def __init__(
        self, request_id: str, model: ServedModel, created: int, *, include_usage: bool, logprobs: int | None,
        prompt_logprobs: int | None, prompts: Sequence[str], prompt_alone: bool,
    ):  # fmt: skip
        super().__init__(
            request_id, model, created, include_usage=include_usage, logprobs=logprobs, prompt_logprobs=prompt_logprobs
        )
        self._prompts = prompts
        self._prompt_alone = prompt_alone
        # Of prompts whose logprobs are shown.
        self._echoed: dict[int, Json] = {}
        # Characters of each output that pieces have had, for where tokens begin.
        self._num_chars: dict[int, int] = {}

    def opening(self, index: int) -> Json | None:
        """The prompt."""
        if not self._prompts:
            return None
        return {**self._choice(index, self._prompts[index]), "logprobs": self._echoed.get(index)}

    def note_prompt(self, choices: range, token_ids: Sequence[int], parts: Sequence[PromptPart]) -> None:
        """Takes the logprobs of a prompt, which choices may begin with."""
        super().note_prompt(choices, token_ids, parts)
        if not (self._logprobs and self._prompts):
            return
        text = self._prompts[choices.start]
        offsets = prompt_offsets(self._tokenizer, token_ids, text)
        places = [each.only(self._num_logprobs) for each in chain.from_iterable(parts)]
        echoed = echoed_logprobs(self._tokenizer, token_ids, places, offsets)
        for index in choices:
            self._echoed[index] = echoed
            self._num_chars[index] = len(text)

    def piece(self, index: int, delta: Delta) -> Json | None:
        """A choice with more of its text."""
        if self._prompt_alone or not (delta.text or self._logprobs):
            return None
        return {**self._choice(index, delta.text), "logprobs": self._shown(index, [delta])}

    def closing(self, index: int, finish: Finish) -> Json:
        """A choice with its end."""
        return {**self._choice(index, ""), **self._end(finish)}

    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Json:
        """A choice with all of it."""
        deltas = () if self._prompt_alone else deltas
        text = "".join((*self._prompts[index : index + 1], *(delta.text for delta in deltas)))
        shown, echoed = self._shown(index, deltas), self._echoed.get(index)
        if shown is not None and echoed is not None:
            shown = {name: echoed[name] + values for name, values in shown.items()}
        prompt = self._prompt_logprobs.get(index)
        return {"index": index, "text": text, "logprobs": shown, **self._end(finish), "prompt_logprobs": prompt}

    def _end(self, finish: Finish) -> Json:
        return {"finish_reason": "length", "stop_reason": None} if self._prompt_alone else _ended(finish)

    def _choice(self, index: int, text: str) -> Json:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def _shown(self, index: int, deltas: Sequence[Delta]) -> Json | None:
        if not self._logprobs:
            return None
        offsets: list[int] = []
        for delta in deltas:
            begin = self._num_chars.get(index, 0)
            offsets += token_offsets(self._tokenizer, delta, begin)
            self._num_chars[index] = begin + len(delta.text)
        ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return completion_logprobs(self._tokenizer, ids, [each for delta in deltas for each in delta.logprobs], offsets)


def token_offsets(tokenizer: Tokenizer, delta: Delta, begin: int) -> list[int]:
    """Where each token of a delta begins in the output's text, in characters; the delta begins at `begin`. A token that
    ends a character begins with it; those of a stop string begin where the text ends."""
    detokenizer = Detokenizer(tokenizer.piece)
    texts = [detokenizer.push(token_id) for token_id in delta.token_ids]
    # Vocabularies that put a space before the first word have it dropped from the text.
    at = -1 if not begin and "".join(texts)[:1] == " " and delta.text[:1] != " " else 0
    offsets = []
    for text in texts:
        offsets.append(begin + min(max(at, 0), len(delta.text)))
        at += len(text)
    return offsets


def prompt_offsets(tokenizer: Tokenizer, token_ids: Sequence[int], text: str) -> list[int]:
    """Where each token of a prompt begins in its text, in characters. It has special tokens where those were spelt
    out."""
    detokenizer = tokenizer.detokenizer()
    offsets, at = [], 0
    for token_id in token_ids:
        offsets.append(min(at, len(text)))
        piece = detokenizer.push(token_id)
        if not piece and text.startswith(spelt := tokenizer.spelling(token_id), at):
            piece = spelt if token_id in tokenizer.special_token_ids else ""
        at += len(piece)
    return offsets


def usage(summaries: Sequence[Summary]) -> Json:
    """What all requests of a call consumed."""
    prompt = sum(each.prompt_tokens for each in summaries)
    completion = sum(each.completion_tokens for each in summaries)
    # Unknown of one is unknown of all.
    accounts = [each.account for each in summaries if each.account is not None]
    known = len(accounts) == len(summaries)
    cached = {"cached_tokens": sum(account.cached_tokens for account in accounts)} if known else None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": cached,
    }


def _call_piece(call: ToolCallDelta) -> Json:
    """More of a call."""
    if not call.name:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **_call(call.id, call.name, call.arguments)}


def _calls(deltas: Sequence[Delta]) -> list[Json]:
    """All calls of an output."""
    calls: list[Json] = []
    for delta in deltas:
        for part in delta.tool_calls:
            if part.name:
                calls.append(_call(part.id, part.name, ""))
            calls[part.index]["function"]["arguments"] += part.arguments
    return calls


def _call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _ended(finish: Finish) -> Json:
    """Why a choice ended; `stop_reason` is, as vLLM's, what matched, and null for the model's end tokens."""
    matched = finish.stop_string if finish.stop_string is not None else finish.stop_token_id
    stopped = "tool_calls" if finish.called else "stop"
    return {"finish_reason": stopped if finish.reason is EndReason.STOP else "length", "stop_reason": matched}
