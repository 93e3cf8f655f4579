"""Calls of tools on their way to the client: with the tokens that made them, streamed and at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer
from gateway.output import Finish, Output, ToolCallDelta
from gateway.sequence_end import EndReason
from gateway.served_model import Catalogue, ServedModel, load_model
from gateway.token_logprobs import TokenLogprobs
from gateway.tool_format import HERMES, MISTRAL, ToolFormat
from gateway.tool_parser import ToolParser
from gateway.validate import validate_generate
from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import Syntax
from tercet.ids import new_tool_call_id
from tercet.sections import ModelSettings
from tercet.v1 import inference_pb2 as pb

from .calling_model import answering, write_calling_model

CALL = '{"name": "get", "arguments": {"city": "Zürich 🙂", "n": "}]"}}'
ARGUMENTS = '{"city": "Zürich 🙂", "n": "}]"}'
TOOLS = [pb.Tool(name="get", parameters='{"type": "object", "properties": {"city": {"type": "string"}}}')]
USER = pb.ChatMessage(role="user", content="hello")


def meanings(form: ToolFormat, answer: str, *, single: bool) -> list[tuple[str, str]]:
    """Of each character the text and the arguments that it adds; a name that begins a call is added by the last one of
    its piece."""
    parser = ToolParser(form, {"get"}, single=single)
    found: list[tuple[str, str]] = []
    for piece in [*parser.push(answer), *parser.finish()]:
        if piece.name:
            found += [("", "")] * (piece.size - 1) + [("", f"\0{piece.name}\0{piece.arguments}")]
        else:
            text, arguments = piece.text or "", piece.arguments or ""
            found += [(text[i : i + 1], arguments[i : i + 1]) for i in range(piece.size)]
    return found


def calls_text(calls: Sequence[ToolCallDelta]) -> str:
    return "".join(f"\0{call.name}\0{call.arguments}" if call.name else call.arguments for call in calls)


answers = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[", "]", ",", CALL, CALL[:30], "a", " ", "}", '"']
    ),
    max_size=8,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([HERMES, MISTRAL]),
    answers,
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.sampled_from([(), ("city",), ("}",), ("<tool_call>",), ("}, ",)]),
    st.booleans(),
    st.booleans(),
)
@example(HERMES, f"Hm <tool_call>{CALL}</tool_call> x", [1], [True], (), False, False)
@example(MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", [3], [False, True], (), False, False)
@example(MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", [5], [False, True], ("}, ",), True, False)
@example(MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", [5], [False, True], ("}, ",), False, True)
def test_tokens_logprobs_text_and_calls_stay_together(
    form: ToolFormat, answer: str, sizes: list[int], reads: list[bool], stops: tuple[str, ...], single: bool,
    include_stop: bool,
) -> None:  # fmt: skip
    raw, tokens = answer.encode(), []
    while raw:
        size = sizes[len(tokens) % len(sizes)]
        tokens.append(raw[:size])
        raw = raw[size:]
    parser = ToolParser(form, {"get"}, single=single)
    output = Output(
        Detokenizer(tokens.__getitem__),
        stop_strings=stops,
        stop_token_ids=frozenset(),
        include_stop=include_stop,
        parser=parser,
        new_call_id=iter(map(str, range(99))).__next__,
    )
    text = calls = ""
    ids: list[int] = []
    ends = [place + include_stop * len(stop) for stop in stops if (place := answer.find(stop)) >= 0]
    expected = meanings(form, answer[: min(ends, default=len(answer))], single=single)

    def take() -> None:
        nonlocal text, calls
        taken = output.take()
        assert taken.token_offset == len(ids)
        ids.extend(taken.token_ids)
        assert [item.logprob for item in taken.logprobs] == [-float(i) for i in taken.token_ids]
        text += taken.text
        calls += calls_text(taken.tool_calls)
        # Whole tokens and all that their characters add, neither less nor more.
        num_chars = len(b"".join(tokens[: len(ids)]).decode(errors="ignore"))
        assert text == "".join(each for each, _ in expected[:num_chars])
        assert calls == "".join(each for _, each in expected[:num_chars])

    for index in range(len(tokens)):
        output.push(index, TokenLogprobs(-float(index), (), ()))
        if output.num_ready and reads[index % len(reads)]:
            take()
        if output.finish is not None:
            break
    else:
        output.end(EndReason.STOP, None)
    take()
    assert len(ids) == output.num_tokens
    assert output.finish is not None
    assert output.finish.called == parser.called
    if single and parser.called:
        assert output.finish == Finish(EndReason.STOP, called=True)
    assert text == "".join(each for each, _ in expected)


def test_of_an_output_that_was_cut_off_the_length_is_told() -> None:
    parser = ToolParser(HERMES, {"get"})
    pieces = ["<tool_call>", CALL]
    output = Output(Detokenizer(pieces.__getitem__), stop_strings=(), stop_token_ids=frozenset(), parser=parser)
    output.push(0)
    output.push(1)
    output.end(EndReason.LENGTH, None)
    assert output.finish is not None
    assert (output.finish.reason, output.finish.called) == (EndReason.LENGTH, False)
    assert calls_text(output.take().tool_calls) == f"\0get\0{ARGUMENTS}"


def test_ids_of_calls_are_nine_letters_and_digits() -> None:
    ids = {new_tool_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in ids)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calling_model(tmp_path_factory.mktemp("models") / "calls")


@pytest.fixture(scope="module")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")))


def chat(**fields: Any) -> pb.GenerateRequest:
    fields = {"messages": [USER], "tools": TOOLS, **fields}
    return pb.GenerateRequest(chat=pb.Chat(**fields), sampling=pb.SamplingParams(seed=1, logprobs=0))


async def test_stream_and_once_tell_the_same_calls(gateway: Any, scheduler: Any, model: ServedModel) -> None:
    ids = answering(scheduler, model, f"Well. [TOOL_CALLS][{CALL}, {CALL}]")
    assert model.tokenizer.token_to_id("[TOOL_CALLS]") in ids
    deltas = [event.delta async for event in gateway.inference.Generate(chat()) if event.HasField("delta")]
    finished = [event.finished async for event in gateway.inference.Generate(chat()) if event.HasField("finished")]
    once = await gateway.inference.GenerateOnce(chat())
    (output,) = once.outputs
    parts = [call for delta in deltas for call in delta.tool_calls]
    begins = [call for call in parts if call.name]
    assert [(call.index, call.name) for call in begins] == [(0, "get"), (1, "get")]
    assert len({call.id for call in begins}) == 2
    assert all(not call.id for call in parts if not call.name)
    # In pieces, not all at the end.
    assert len(parts) > 10
    streamed = ["".join(call.arguments for call in parts if call.index == index) for index in (0, 1)]
    assert streamed == [call.arguments for call in output.tool_calls] == [ARGUMENTS, ARGUMENTS]
    assert [call.name for call in output.tool_calls] == ["get", "get"]
    assert "".join(delta.text for delta in deltas) == output.text == "Well. "
    assert [token_id for delta in deltas for token_id in delta.token_ids] == list(output.token_ids) == ids
    assert sum(len(delta.logprobs) for delta in deltas) == len(output.logprobs) == len(ids)
    assert finished[0].outputs[0].reason == output.end.reason == pb.FINISH_REASON_TOOL_CALLS


async def test_one_call_can_be_all_that_is_wanted(gateway: Any, scheduler: Any, model: ServedModel) -> None:
    answering(scheduler, model, f"[TOOL_CALLS][{CALL}, {CALL}]")
    (output,) = (await gateway.inference.GenerateOnce(chat(parallel_tool_calls=False))).outputs
    assert [call.arguments for call in output.tool_calls] == [ARGUMENTS]
    assert output.end == pb.OutputEnd(reason=pb.FINISH_REASON_TOOL_CALLS)
    # The mesh need not go on.
    await asyncio.wait_for(scheduler.sequences[0].stopped.wait(), 10)
    (output,) = (await gateway.inference.GenerateOnce(chat(parallel_tool_calls=True))).outputs
    assert len(output.tool_calls) == 2


@pytest.mark.parametrize("fields", [{"tools": []}, {"tool_choice": pb.TOOL_CHOICE_NONE}])
async def test_without_tools_there_are_no_calls(
    gateway: Any, scheduler: Any, model: ServedModel, fields: dict[str, Any]
) -> None:
    answering(scheduler, model, f"[TOOL_CALLS][{CALL}]")
    (output,) = (await gateway.inference.GenerateOnce(chat(**fields))).outputs
    # The marker is a special token, and as such no text.
    assert (output.text, list(output.tool_calls)) == (f"[{CALL}]", [])
    assert output.end.reason == pb.FINISH_REASON_STOP


async def test_the_answer_of_a_tool_goes_back(gateway: Any, scheduler: Any, model: ServedModel) -> None:
    answering(scheduler, model, f"[TOOL_CALLS][{CALL}]")
    (output,) = (await gateway.inference.GenerateOnce(chat())).outputs
    turns = [
        USER,
        pb.ChatMessage(role="assistant", content=output.text, tool_calls=output.tool_calls),
        pb.ChatMessage(role="tool", content="sunny", tool_call_id=output.tool_calls[0].id),
    ]
    rendered = await gateway.inference.Tokenize(pb.TokenizeRequest(chat=pb.Chat(messages=turns, tools=TOOLS)))
    shown = json.dumps({"name": "get", "arguments": json.loads(ARGUMENTS)}, ensure_ascii=False)
    assert rendered.text.endswith(f"<|assistant|>[TOOL_CALLS][{shown}]<|end|><|tool|>sunny<|end|><|assistant|>")


@pytest.mark.parametrize(
    ("choice", "syntax", "calls"),
    [
        (pb.TOOL_CHOICE_UNSPECIFIED, Syntax.STRUCTURAL_TAG, True),
        (pb.TOOL_CHOICE_AUTO, Syntax.STRUCTURAL_TAG, True),
        (pb.TOOL_CHOICE_NONE, Syntax.JSON_SCHEMA, False),
    ],
)
def test_what_the_text_has_to_be_leaves_calls_where_there_may_be_some(
    model: ServedModel, choice: pb.ToolChoice, syntax: Syntax, calls: bool
) -> None:
    request = chat(tool_choice=choice)
    request.structured_output.json_object.SetInParent()
    structure = validate_generate(request, Catalogue([model]), max_prompt_bytes=10_000).structure
    assert structure is not None
    assert (structure.syntax, "[TOOL_CALLS]" in structure.text) == (syntax, calls)


async def test_a_text_beside_tools_is_told_as_one(gateway: Any, scheduler: Any, model: ServedModel) -> None:
    asked = chat()
    asked.structured_output.json_object.SetInParent()
    answering(scheduler, model, '{"a": 1}')
    (output,) = (await gateway.inference.GenerateOnce(asked)).outputs
    assert (output.text, list(output.tool_calls), output.end.reason) == ('{"a": 1}', [], pb.FINISH_REASON_STOP)
    answering(scheduler, model, f"[TOOL_CALLS][{CALL}]")
    (output,) = (await gateway.inference.GenerateOnce(asked)).outputs
    assert (output.text, len(output.tool_calls), output.end.reason) == ("", 1, pb.FINISH_REASON_TOOL_CALLS)
    asked.stop.ignore_eos = True
    with pytest.raises(InvalidFieldError, match="end token"):
        validate_generate(asked, Catalogue([model]), max_prompt_bytes=10_000)


def test_tools_of_a_model_whose_calls_are_not_known(model_path: Path) -> None:
    model = load_model(ModelSettings(model=str(model_path), tool_parser="none"))
    assert model.tool_format is None
    assert load_model(ModelSettings(model=str(model_path), tool_parser="hermes")).tool_format is HERMES
    with pytest.raises(InvalidFieldError, match=r"model\.tool_parser") as caught:
        validate_generate(chat(), Catalogue([model]), max_prompt_bytes=10_000)
    assert caught.value.metadata["field"] == "chat.tools"
