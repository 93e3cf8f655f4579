"""The options of a request by name, typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from tercet.messages import Options, Tool, ToolChoice


class OptionNames(TypedDict, total=False):
    """Each field of Options, which says what they mean."""

    model: str
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    include_stop_string: bool
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: str | Sequence[str]
    min_tokens: int | None
    request_id: str
    n: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    priority: int | None
    traffic_class: str
    cache_salt: str
    json_object: bool
    json_schema: str
    regex: str
    choice: Sequence[str]
    ebnf: str
    tools: Sequence[Tool]
    tool_choice: ToolChoice
    forced_tool: str
    parallel_tool_calls: bool | None
    documents: Sequence[str]
    add_generation_prompt: bool | None
    continue_final_message: bool
    template_kwargs: str


def options_of(options: Options | None, named: Mapping[str, Any]) -> Options:
    """The one or the other. Raises TypeError for both, for a name that is no option, and for what are no Options."""
    if options is not None and named:
        raise TypeError("give Options, or options by name, not both")
    if not isinstance(options, Options | None):
        raise TypeError(f"options must be Options, is {type(options).__name__}")
    known = [item.name for item in dataclasses.fields(Options)]
    for name in named:
        if name not in known:
            raise TypeError(f"{name!r} is not an option; options are {', '.join(known)}")
    return options or Options(**named)
