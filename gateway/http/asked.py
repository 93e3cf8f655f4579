"""What the two endpoints that generate are asked, as requests of tercet.v1. Pure; tokenizes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from ..token_logprobs import MAX_LOGPROBS
from .chat_body import read_chat_input
from .fields import Fields
from .parameters import MAX_UINT32, Common, read_common

# Each prompt is a request of its own, with a place among those that run.
MAX_PROMPTS = 128
# OpenAI's of completions.
DEFAULT_MAX_TOKENS = 16

_COMPLETIONS_DO_NOT_OFFER: dict[str, Any] = {"suffix": ("",), "add_special_tokens": (True,), "prompt_embeds": ()}
_CHATS_DO_NOT_OFFER: dict[str, Any] = {
    # What tools and tool_choice have replaced.
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "moderation": (),
    "chat_template": (),
    "echo": (False,),
    "add_special_tokens": (False,),
}
_CHATS_IGNORE = ("prediction", "reasoning_effort", "verbosity")


@dataclass(frozen=True, slots=True)
class Asked:
    """One call. `requests` have all but an id and a class; `renamed` are parameters that this call names otherwise."""

    requests: tuple[pb.GenerateRequest, ...]
    stream: bool
    include_usage: bool
    # Whether each output begins with its prompt, and is nothing else.
    echo: bool
    prompt_alone: bool
    num_prompt_logprobs: int | None
    # Where neither it nor the model says how many; None: what the context leaves.
    default_max_tokens: int | None
    ignored: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)


def read_completion(body: Mapping[str, Any]) -> Asked:
    """The body of /v1/completions. Raises InvalidFieldError."""
    fields = Fields(body)
    prompts = _read_prompts(fields)
    echo = fields.flag("echo") or False
    num_logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    max_tokens = fields.integer("max_tokens", 0, MAX_UINT32)
    fields.only(_COMPLETIONS_DO_NOT_OFFER)
    # A prompt is scored by a request for one token more, which nobody sees.
    prompt_alone = echo and max_tokens == 0
    common = read_common(fields, num_logprobs, 1 if prompt_alone else max_tokens)
    fields.refuse_rest()
    renamed = {}
    if echo and num_logprobs is not None:
        # What an answer begins with has logprobs, too.
        common.message.sampling.prompt_logprobs = max(num_logprobs, common.num_prompt_logprobs or 0)
        if common.num_prompt_logprobs is None:
            renamed = {"prompt_logprobs": "logprobs"}
    asked = _asked(common, prompts, renamed=renamed)
    return dataclasses.replace(asked, echo=echo, prompt_alone=prompt_alone, default_max_tokens=DEFAULT_MAX_TOKENS)


def read_chat(body: Mapping[str, Any]) -> Asked:
    """The body of /v1/chat/completions. Raises InvalidFieldError."""
    fields = Fields(body)
    fields.only(_CHATS_DO_NOT_OFFER)
    ignored = fields.ignored(_CHATS_IGNORE)
    old, new = (fields.integer(name, 0, MAX_UINT32) for name in ("max_tokens", "max_completion_tokens"))
    if old is not None and new is not None and old != new:
        raise InvalidFieldError("max_tokens and max_completion_tokens are not the same", field="max_completion_tokens")
    common = read_common(fields, _read_chat_logprobs(fields), old if new is None else new)
    chat = read_chat_input(fields, ignored, structured=common.message.HasField("structured_output"))
    fields.refuse_rest()
    renamed = {"logprobs": "top_logprobs"} | ({} if new is None else {"max_tokens": "max_completion_tokens"})
    asked = _asked(common, [{"chat": chat}], renamed=renamed)
    return dataclasses.replace(asked, ignored=(*ignored, *asked.ignored))


def _asked(common: Common, inputs: list[dict[str, Any]], *, renamed: Mapping[str, str]) -> Asked:
    requests = []
    for each in inputs:
        request = pb.GenerateRequest(**each)
        request.MergeFrom(common.message)
        requests.append(request)
    return Asked(
        requests=tuple(requests),
        stream=common.stream,
        include_usage=common.include_usage,
        echo=False,
        prompt_alone=False,
        num_prompt_logprobs=common.num_prompt_logprobs,
        default_max_tokens=None,
        ignored=common.ignored,
        renamed={**common.renamed, **renamed},
    )


def _read_prompts(fields: Fields) -> list[dict[str, Any]]:
    """The inputs of the requests: a text, token ids, or a list of one of them."""
    given = fields.take("prompt")
    if given is None:
        raise InvalidFieldError("prompt is required", field="prompt")
    if isinstance(given, str):
        return [{"prompt": fields.as_text("prompt", given)}]
    if not isinstance(given, list) or not given:
        raise InvalidFieldError("prompt must be a text, token ids, or a list of one of them", field="prompt")
    if not isinstance(given[0], (str, list)):
        return [{"token_ids": _read_ids(fields, "prompt", given)}]
    if len(given) > MAX_PROMPTS:
        raise InvalidFieldError(f"{len(given)} prompts; at most {MAX_PROMPTS} are allowed", field="prompt")
    if isinstance(given[0], str):
        return [{"prompt": fields.as_text(f"prompt[{index}]", each)} for index, each in enumerate(given)]
    return [{"token_ids": _read_ids(fields, f"prompt[{index}]", each)} for index, each in enumerate(given)]


def _read_ids(fields: Fields, name: str, given: Any) -> pb.TokenIds:
    if not isinstance(given, list):
        raise InvalidFieldError(f"{name} must be a list of token ids", field=name)
    # A context full of them takes a tenth of the time so; what is wrong is named one by one.
    if set(map(type, given)) == {int} and min(given) >= 0 and max(given) <= MAX_UINT32:
        return pb.TokenIds(ids=given)
    return pb.TokenIds(ids=[fields.as_integer(f"{name}[{i}]", each, 0, MAX_UINT32) for i, each in enumerate(given)])


def _read_chat_logprobs(fields: Fields) -> int | None:
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise InvalidFieldError("top_logprobs needs logprobs: true", field="top_logprobs")
    return (top or 0) if wanted else None
