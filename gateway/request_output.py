"""An output for what a request asks of its text."""

from __future__ import annotations

from collections.abc import Iterable

from tercet.ids import new_tool_call_id

from .output import Output
from .prompt_input import ChatInput
from .tool_parser import ToolParser
from .validate import GenerationRequest


def output_of(request: GenerationRequest, prompt_token_ids: Iterable[int]) -> Output:
    """One behind a prompt of these tokens."""
    stop, model, given = request.stop, request.model, request.input
    chat = given.chat if isinstance(given, ChatInput) else None
    form = model.tool_format if chat is not None and chat.tools else None
    parser = None
    if form is not None and chat is not None:
        parser = ToolParser(form, {tool.name for tool in chat.tools}, single=chat.single_call)
    return Output(
        model.tokenizer.detokenizer(prompt_token_ids, () if form is None else form.markers),
        stop_strings=stop.strings,
        stop_token_ids=frozenset(stop.token_ids),
        include_stop=stop.include_string,
        min_tokens=request.penalties.min_tokens,
        parser=parser,
        new_call_id=new_tool_call_id,
    )
