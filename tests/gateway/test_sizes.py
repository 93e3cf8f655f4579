"""Sizes: what surely fits is found good by every check, whatever its tokens are."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mesh_messages import Pool
from gateway.served_model import Catalogue, ServedModel
from gateway.sizes import refuse_hopeless, resolve_max_tokens, surely_fits
from gateway.tokenizing import Tokenizing
from gateway.validate import GenerationRequest, validate_generate
from tercet.errors import PromptTooLongError
from tercet.tenants.plan import TenantPlan
from tercet.v1 import inference_pb2 as pb

FREE = TenantPlan()


def request_of(model: ServedModel, max_tokens: int | None = 4, **fields: Any) -> GenerationRequest:
    message = pb.GenerateRequest(**{"prompt": "hello", **fields})
    if max_tokens is not None:
        message.stop.max_tokens = max_tokens
    return validate_generate(message, Catalogue([model]), max_prompt_bytes=1 << 20)


def pool(max_model_len: int = 0, max_sequence_len: int = 30) -> Pool:
    return Pool(1, max_model_len, max_sequence_len)


@settings(max_examples=200, deadline=None)
@given(
    prompt=st.integers(1, 70),
    max_tokens=st.none() | st.integers(1, 70),
    max_model_len=st.integers(0, 70),
    max_sequence_len=st.integers(0, 70),
    max_context=st.integers(0, 70),
)
def test_what_surely_fits_no_check_refuses(
    model: ServedModel,
    prompt: int,
    max_tokens: int | None,
    max_model_len: int,
    max_sequence_len: int,
    max_context: int,
) -> None:
    request, there = request_of(model, max_tokens), pool(max_model_len, max_sequence_len)
    if not surely_fits(request, prompt, there, TenantPlan(max_context=max_context)):
        return
    for tokens in {1, prompt}:
        resolved = resolve_max_tokens(request, tokens, there)
        # What the scheduler looks at; it lowers what was left open to what the plan allows.
        assert tokens + (resolved if max_tokens is not None else 1) <= max_sequence_len
        if max_context:
            assert tokens + (max_tokens or 1) <= max_context


@settings(max_examples=200, deadline=None)
@given(
    least=st.integers(0, 70),
    more=st.integers(0, 3),
    max_tokens=st.none() | st.integers(1, 70),
    max_model_len=st.integers(0, 70),
    max_context=st.integers(0, 70),
)
def test_what_is_hopeless_every_check_refuses(
    model: ServedModel, least: int, more: int, max_tokens: int | None, max_model_len: int, max_context: int
) -> None:
    request, there = request_of(model, max_tokens), pool(max_model_len)
    try:
        refuse_hopeless(request, least, there, TenantPlan(max_context=max_context))
    except PromptTooLongError as error:
        if "max_context" in error.metadata:
            # As the scheduler looks at it.
            assert least + more + (max_tokens or 1) > max_context
        else:
            with pytest.raises(PromptTooLongError):
                resolve_max_tokens(request, least + more, there)
    else:
        assert least < (max_model_len or model.max_model_len)
        assert not max_context or least < max_context


def test_it_is_no_smaller_than_it_has_to_be(model: ServedModel) -> None:
    request = request_of(model, 4)
    assert surely_fits(request, 26, pool(), FREE)
    assert not surely_fits(request, 27, pool(), FREE)
    assert not surely_fits(request, 26, pool(), TenantPlan(max_context=29))
    assert not surely_fits(request, 26, pool(), TenantPlan(tokens_per_minute=29))
    assert surely_fits(request, 26, pool(), TenantPlan(tokens_per_minute=30))
    with pytest.raises(PromptTooLongError):
        resolve_max_tokens(request, 27, pool(max_model_len=30))


@pytest.mark.parametrize(
    ("fields", "plan", "there"),
    [
        ({"sampling": pb.SamplingParams(n=2)}, FREE, pool()),
        ({"stop": pb.StopConditions(min_tokens=1)}, FREE, pool()),
        ({}, TenantPlan(kv_share=0.5), pool()),
        ({}, FREE, pool(max_sequence_len=0)),
    ],
)
def test_what_takes_more_to_know(model: ServedModel, fields: dict[str, Any], plan: TenantPlan, there: Pool) -> None:
    assert surely_fits(request_of(model, max_tokens=4), 5, pool(), FREE)
    assert not surely_fits(request_of(model, 4, **fields), 5, there, plan)


async def test_no_text_has_more_tokens_than_thought(model: ServedModel) -> None:
    tokenizing = Tokenizing(1 << 20)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hé" * 20)])
    long_chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * 5000)])
    for fields in ({"prompt": "a"}, {"prompt": "ﷺ" * 9}, {"chat": chat}, {"token_ids": pb.TokenIds(ids=[1, 2])}):
        given_input = request_of(model, **fields).input
        _, ids = await tokenizing.encode(model, given_input, "a")
        most = tokenizing.most_tokens(model, given_input)
        assert most is not None
        assert len(ids) <= most
    assert tokenizing.most_tokens(model, request_of(model, chat=long_chat).input) is None
    tokenizing.close()


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_no_normal_form_is_longer_than_thought(form: Any) -> None:
    for text in map(chr, range(0x11000)):
        size = len(text.encode("utf-8", "surrogatepass"))
        assert len(unicodedata.normalize(form, text).encode("utf-8", "surrogatepass")) <= 11 * size
