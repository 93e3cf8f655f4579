"""What completions and chats have in common: OpenAI's parameters, and vLLM's further ones, as those of tercet.v1.

Each parameter is taken, or refused by its name, or named in the answer as one that changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from ..token_logprobs import MAX_LOGPROBS
from .fields import Fields
from .structure import read_form

MAX_UINT32 = 2**32 - 1
_MIN_INT64, _MAX_UINT64 = -(2**63), 2**64 - 1

# Offered by neither endpoint but with these values.
_NOT_OFFERED: dict[str, Sequence[Any]] = {
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "logits_processors": ([],),
}
# Say something about a request that no token of its answer depends on.
_CHANGE_NOTHING = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Common:
    """The part of a request that is not its prompt. `message` has no input yet; `renamed` as in Asked."""

    message: pb.GenerateRequest
    stream: bool
    include_usage: bool
    # Of each token of the prompt, as a part of the answer of its own.
    num_prompt_logprobs: int | None
    ignored: tuple[str, ...]
    renamed: Mapping[str, str]


def read_common(fields: Fields, num_logprobs: int | None, max_tokens: int | None) -> Common:
    """Takes all that both endpoints know. The two that they call differently are given. Raises InvalidFieldError."""
    fields.only(_NOT_OFFERED)
    ignored = fields.ignored(_CHANGE_NOTHING)
    stream = fields.flag("stream") or False
    include_usage = _read_stream_options(fields, stream, ignored)
    num_prompt_logprobs = fields.integer("prompt_logprobs", 0, MAX_LOGPROBS)
    if stream and num_prompt_logprobs is not None:
        raise InvalidFieldError("prompt_logprobs needs stream: false", field="prompt_logprobs")
    message = pb.GenerateRequest(
        model=fields.text("model") or "",
        sampling=_read_sampling(fields, num_logprobs),
        stop=_read_stop(fields, max_tokens),
        cache_salt=fields.text("cache_salt") or "",
    )
    if num_prompt_logprobs is not None:
        message.sampling.prompt_logprobs = num_prompt_logprobs
    priority = fields.integer("priority", -(2**31), 2**31 - 1)
    if priority is not None:
        message.priority = priority
    renamed = {}
    if (structure := read_form(fields, ignored)) is not None:
        renamed["structured_output"], form = structure
        message.structured_output.CopyFrom(form)
    return Common(message, stream, include_usage, num_prompt_logprobs, tuple(ignored), renamed)


def _read_stream_options(fields: Fields, stream: bool, ignored: list[str]) -> bool:
    options = fields.inner("stream_options")
    if options is None:
        return False
    if not stream:
        raise InvalidFieldError("stream_options needs stream: true", field="stream_options")
    include_usage = options.flag("include_usage") or False
    options.only({"continuous_usage_stats": (False,)})
    ignored += options.ignored(("include_obfuscation",))
    options.refuse_rest()
    return include_usage


def _read_sampling(fields: Fields, num_logprobs: int | None) -> pb.SamplingParams:
    seed = fields.integer("seed", _MIN_INT64, _MAX_UINT64)
    top_k = fields.integer("top_k", -1, MAX_UINT32)
    return pb.SamplingParams(
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        # -1 is how vLLM says that it is off, and of the seed that one is drawn.
        top_k=0 if top_k == -1 else top_k,
        min_p=fields.number("min_p"),
        seed=None if seed in (None, -1) else seed % 2**64,
        n=fields.integer("n", 0, MAX_UINT32),
        best_of=fields.integer("best_of", 0, MAX_UINT32),
        logit_bias=_read_bias(fields),
        repetition_penalty=fields.number("repetition_penalty"),
        frequency_penalty=fields.number("frequency_penalty"),
        presence_penalty=fields.number("presence_penalty"),
        allowed_token_ids=fields.integers("allowed_token_ids", 0, MAX_UINT32),
        logprobs=num_logprobs,
        bad_words=fields.texts("bad_words"),
    )


def _read_bias(fields: Fields) -> list[pb.LogitBias]:
    inner = fields.inner("logit_bias")
    if inner is None:
        return []
    return [pb.LogitBias(token_id=token_id, bias=bias) for token_id, bias in inner.by_number(MAX_UINT32)]


def _read_stop(fields: Fields, max_tokens: int | None) -> pb.StopConditions:
    given = fields.take("stop")
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list):
        raise InvalidFieldError("stop must be a text or a list of texts", field="stop")
    return pb.StopConditions(
        max_tokens=max_tokens,
        strings=[fields.as_text("stop" if text is given else f"stop[{i}]", text) for i, text in enumerate(texts)],
        token_ids=fields.integers("stop_token_ids", 0, MAX_UINT32),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", 0, MAX_UINT32),
        include_stop_string=fields.flag("include_stop_str_in_output"),
    )
