"""Models, tokens and health over HTTP."""

from __future__ import annotations

import openai
import pytest

from .test_generating import CHAT


async def test_every_name_is_a_model(client, http):
    listed = [each async for each in client.models.list()]
    assert [each.id for each in listed] == ["bytes", "alias"]
    assert [each.owned_by for each in listed] == ["tercet", "tercet"]
    found = (await http.get("/v1/models/alias")).json()
    assert (found["id"], found["root"], found["object"], found["max_model_len"]) == ("alias", "bytes", "model", 256)
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("a/b")


async def test_tokens_are_those_of_the_model(http, model):
    text = "hello, 世界"
    made = (await http.post("/tokenize", json={"prompt": text})).json()
    ids = model.tokenizer.encode(text, add_bos=True)
    assert made == {"count": len(ids), "max_model_len": 256, "tokens": ids, "token_strs": None}
    back = await http.post("/detokenize", json={"model": "alias", "tokens": ids})
    assert back.json() == {"prompt": text}
    chat = (await http.post("/tokenize", json={"messages": CHAT, "model": "alias"})).json()
    assert chat["tokens"][-1] == model.tokenizer.token_to_id("<|assistant|>")


@pytest.mark.parametrize(
    ("path", "body", "parameter"),
    [
        ("/tokenize", {}, "messages"),
        ("/tokenize", {"prompt": "a", "messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 280]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_what_is_wrong_is_named(http, path, body, parameter):
    answer = await http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter), answer.text


async def test_who_asks_for_the_tokens_of_nothing_is_told_what_is_missing(http):
    answer = await http.post("/tokenize", json={"tokens": [1]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "prompt or messages is required")


async def test_health_is_that_of_the_gateway(http, scheduler, until):
    answer = await http.get("/health")
    assert answer.status_code == 200
    assert answer.json()["ready"] == []
    scheduler.workers_live = 0
    await scheduler.send_pools()

    async def unready() -> bool:
        return (await http.get("/health")).status_code == 503

    await until(unready)
    assert (await http.get("/health")).json()["ready"] == ["no worker is there for its model"]
    assert (await http.head("/health")).content == b""
