"""What a request begins with: a text, tokens, or a chat. Pure; tokenizes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tercet.errors import InvalidFieldError, PromptTooLongError
from tercet.v1 import inference_pb2 as pb

from .chat import Chat
from .chat_request import read_chat, written_texts
from .served_model import ServedModel
from .vocabulary import check_token_ids


@dataclass(frozen=True, slots=True)
class TextInput:
    """Text to tokenize as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Token ids, each in the vocabulary."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A conversation to render, one that the model's template has a use for."""

    chat: Chat


Input = TextInput | TokenInput | ChatInput


def input_of(message: pb.GenerateRequest, model: ServedModel, max_prompt_bytes: int) -> Input:
    """Checks what a request has. Raises PromptTooLongError, InvalidFieldError naming the field."""
    which = message.WhichOneof("input")
    if which == "prompt":
        return text_input(message.prompt, max_prompt_bytes)
    if which == "token_ids":
        ids = message.token_ids.ids
        if not ids:
            raise InvalidFieldError("token_ids is empty; give at least one token", field="token_ids.ids")
        if len(ids) >= model.max_model_len:
            raise prompt_too_long("token_ids.ids", len(ids), None, model.max_model_len)
        check_token_ids(ids, model.vocab_size, "token_ids.ids")
        return TokenInput(ids)
    if which == "chat":
        return chat_input(message.chat, model, max_prompt_bytes)
    raise InvalidFieldError("one of prompt, token_ids, chat is required", field="input")


def text_input(text: str, max_prompt_bytes: int) -> TextInput:
    """Checks a text; errors as for `input_of`."""
    if not text:
        raise InvalidFieldError("prompt is empty", field="prompt")
    _check_bytes("prompt", [text], max_prompt_bytes)
    return TextInput(text)


def chat_input(given: pb.Chat, model: ServedModel, max_prompt_bytes: int) -> ChatInput:
    """Checks a chat; errors as for `input_of`."""
    _check_bytes("chat", written_texts(given), max_prompt_bytes)
    chat = read_chat(given)
    model.check_chat(chat)
    return ChatInput(chat)


def _check_bytes(field: str, texts: Iterable[str], max_prompt_bytes: int) -> None:
    size = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
    if size > max_prompt_bytes:
        raise PromptTooLongError(
            f"the prompt has {size} bytes; at most {max_prompt_bytes} are allowed",
            field=field,
            metadata={"prompt_bytes": str(size), "max_prompt_bytes": str(max_prompt_bytes)},
        )


def prompt_too_long(field: str, prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> PromptTooLongError:
    """The error of a prompt that leaves no room, or, with `max_tokens`, not enough. All counts are tokens."""
    metadata = {"prompt_tokens": str(prompt_tokens), "max_model_len": str(max_model_len)}
    if max_tokens is None:
        text = f"the prompt has {prompt_tokens} tokens; the context holds {max_model_len}, and one has to be left"
    else:
        metadata["max_tokens"] = str(max_tokens)
        text = (
            f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}; together they may be at most "
            f"{max_model_len}"
        )
    return PromptTooLongError(text, field=field, metadata=metadata)
