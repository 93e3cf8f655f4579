"""Chats in the console: what is asked, what is shown, and what a stop does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.served_model import ServedModel
from tercet.errors import EngineFaultError, QueueFullError
from tercet.failure import failure_to_proto
from tercet.mesh.v1 import sequence_pb2

from .browser import Page
from .conftest import WatchedScheduler

HOSTILE = [
    '<img src=x onerror="window.hacked=1"><b>&amp;</b>',
    "<script>window.hacked=2</script></p></article>",
    "[click](javascript:hacked=3) ![seen](http://203.0.113.1/)",
    "```\n<svg onload=hacked=4>\n<script>hacked=5</script>\n```",
]


def says(model: ServedModel, *pieces: str, then: asyncio.Event | None = None) -> Callable[[Any], Awaitable[None]]:
    """A model that says these pieces; the last of them when `then` is set."""

    async def play(sequence: Any) -> None:
        for index, piece in enumerate(pieces):
            if then is not None and index == len(pieces) - 1:
                await then.wait()
            await sequence.tokens(*model.tokenizer.encode(piece, add_bos=False))
        await sequence.end(sequence_pb2.END_REASON_STOP, stop_token_id=model.eos_token_ids[0])

    return play


async def test_an_answer_is_shown_as_it_comes(page: Page, scheduler: WatchedScheduler, model: ServedModel) -> None:
    rest = asyncio.Event()
    scheduler.play = says(model, "hello ", "world", then=rest)
    await page.ask("Who is there?")
    await page.until_shown(".answer .rich", "hello")
    assert await page.shown(".answer .rich") == "hello "
    assert await page.run("return document.querySelector('.answer').getAttribute('aria-busy')") == "true"
    rest.set()
    figures = await page.until_shown(".figures", "finished")
    assert await page.shown(".answer .rich") == "hello world"
    assert await page.shown(".question p") == "Who is there?"
    assert "first token" in figures
    assert "tokens/s" in figures
    assert "about" not in figures
    made = len(model.tokenizer.encode("hello ", add_bos=False)) + len(model.tokenizer.encode("world", add_bos=False))
    assert f" {made} tokens " in figures
    assert "cached" in figures
    assert await page.shown("#announcer") == "Answer finished."


async def test_turns_before_are_sent_along(page: Page, scheduler: WatchedScheduler, model: ServedModel) -> None:
    scheduler.play = says(model, "one")
    await page.ask("first")
    await page.until_shown(".figures", "finished")
    await page.fill("#system", "be brief")
    scheduler.play = says(model, "two")
    await page.ask("second")
    await page.until_shown(".turn:nth-child(2) .figures", "finished")
    wanted = [("system", "be brief"), ("user", "first"), ("assistant", "one"), ("user", "second")]
    turns = "".join(f"<|{role}|>{text}<|end|>" for role, text in wanted)
    ids = model.tokenizer.encode(f"<s>{turns}<|assistant|>", add_bos=False)
    assert list(scheduler.sequences[1].submit.prompt_token_ids) == ids
    await page.click("#clear")
    await page.until_shown("#empty", "Ask the model something.")
    scheduler.play = says(model, "three")
    await page.ask("third")
    await page.until_shown(".figures", "finished")
    assert len(scheduler.sequences[2].submit.prompt_token_ids) < len(ids)


@pytest.mark.parametrize("how", ["stop", "key", "clear"])
async def test_a_stop_cancels(how: str, page: Page, scheduler: WatchedScheduler, model: ServedModel) -> None:
    scheduler.play = says(model, "hello", "never", then=asyncio.Event())
    await page.ask("Go on for ever.")
    await page.until_shown(".answer .rich", "hello")
    if how == "key":
        await page.press("ESCAPE")
    else:
        await page.click(f"#{how}")
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 20)
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_CLIENT
    if how != "clear":
        assert "about" in await page.until_shown(".figures", "stopped")
    # What was stopped is part of the chat; what was cleared is not.
    scheduler.play = says(model, "again")
    await page.ask("And now?")
    await page.until_shown(".figures", "finished")
    told = scheduler.sequences[1].submit.prompt_token_ids
    stopped = model.tokenizer.encode("hello", add_bos=False)[0]
    assert (stopped in told) is (how != "clear")


async def test_what_waits_in_the_queue_can_be_stopped(page: Page, scheduler: WatchedScheduler) -> None:
    scheduler.accept = False
    await page.ask("Is there room?")
    await page.until_shown(".figures", "waiting for the mesh")
    await asyncio.wait_for(scheduler.submitted.wait(), 20)
    await page.click("#stop")
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 20)
    assert await page.until_shown(".figures", "stopped") == "stopped"


async def test_every_setting_reaches_the_request(page: Page, scheduler: WatchedScheduler, model: ServedModel) -> None:
    numbers = {"temperature": 0.25, "top_p": 0.5, "top_k": 3, "min_p": 0.125, "seed": 9007199254740991}
    for name, value in numbers.items():
        await page.fill(f"#{name}", str(value))
    await page.fill("#max_tokens", "77")
    await page.fill("#stop-texts", "lo w\n\\n\\n")
    await page.choose("#class", "batch")
    await page.choose("#model", "alias")
    scheduler.play = says(model, "hello world")
    await page.ask("Say it.")
    assert await page.until_shown(".figures", "finished")
    assert await page.shown(".answer .rich") == "hel"
    submit = scheduler.sequences[0].submit
    sampling = submit.sampling
    assert {name: getattr(sampling, name) for name in numbers} == numbers
    assert submit.max_tokens == 77
    assert submit.traffic_class == "batch"
    assert scheduler.sequences[0].stopped.is_set()


@pytest.mark.parametrize("width", [800, 1280])
async def test_what_is_out_of_range_is_not_sent(width: int, page: Page, scheduler: WatchedScheduler) -> None:
    await page.fill("#temperature", "3")
    # Below the one the settings are out of sight.
    await page.resize(width)
    await page.until("return document.getElementById('panel').hidden === arguments[0]", width < 960)
    await page.ask("Say it.")
    assert await page.run("return document.querySelector('#temperature').matches(':invalid')")
    assert await page.focused() == "temperature"
    assert scheduler.sequences == []
    assert await page.run("return document.querySelector('#question').value") == "Say it."


class TestRefusals:
    @pytest.fixture
    def complaints(self) -> list[str]:
        return ["the server responded with a status of 4"]

    async def test_a_refusal_has_its_reason_and_when_to_ask_again(
        self, page: Page, scheduler: WatchedScheduler, model: ServedModel
    ) -> None:
        scheduler.refuse = failure_to_proto(QueueFullError("the queue has 7 requests", retry_after_s=2))
        await page.ask("Is there room?")
        await page.until_shown(".problem", "the queue has 7 requests")
        assert "queue_full" in await page.shown(".problem")
        assert await page.until_shown(".wait", "in ")
        assert await page.run("return document.querySelector('.actions button:disabled').innerText") == "Ask again"
        await page.until("return document.querySelectorAll('.actions button:disabled').length === 0")
        scheduler.refuse = None
        scheduler.play = says(model, "now there is")
        await page.run("document.querySelector('.actions button:last-of-type').focus()")
        assert await page.focused() == "Ask again"
        await page.press("ENTER")
        await page.until_shown(".answer .rich", "now there is")
        assert await page.run("return document.querySelector('.problem').innerText") == ""
        assert await page.run("return document.querySelectorAll('.turn').length") == 1
        assert await page.focused() == "question"

    async def test_what_the_gateway_finds_wrong_is_named(self, page: Page, scheduler: WatchedScheduler) -> None:
        await page.fill("#max_tokens", "100000")
        await page.ask("Say it.")
        await page.until_shown(".problem", "max_tokens")
        assert scheduler.sequences == []

    async def test_an_answer_that_fails_keeps_what_it_has(self, page: Page, scheduler: WatchedScheduler) -> None:
        async def play(sequence: Any) -> None:
            await sequence.tokens(*scheduler.model.tokenizer.encode("half", add_bos=False))
            failure = failure_to_proto(EngineFaultError("the device is gone"))
            await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

        scheduler.play = play
        await page.ask("Say it.")
        await page.until_shown(".problem", "the device is gone")
        assert "engine_fault" in await page.shown(".problem")
        assert await page.shown(".answer .rich") == "half"
        assert "failed" in await page.shown(".figures")


class TestLost:
    @pytest.fixture
    def complaints(self) -> list[str]:
        return ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "status of 503"]

    async def test_a_gateway_that_is_gone(self, page: Page, gateway: Any) -> None:
        gateway.stopping.set()
        await gateway.task
        await page.ask("Is somebody there?")
        await page.until_shown(".problem", "The connection to the gateway was lost.")
        assert await page.run("return document.getElementById('question').value") == ""
        assert not await page.run("return document.querySelector('.actions button:last-of-type').disabled")


async def test_what_is_said_is_text(page: Page, scheduler: WatchedScheduler, model: ServedModel) -> None:
    for count, text in enumerate(HOSTILE, 1):
        scheduler.play = says(model, text)
        await page.click("#clear")
        await page.ask(text.replace("\n", " "))
        await page.until_shown(".figures", "finished")
        assert len(scheduler.sequences) == count
        assert await page.shown(".question p") == text.replace("\n", " ")
        made = await page.run("return [...document.querySelectorAll('#log *')].map((each) => each.localName)")
        assert not {"img", "script", "a", "b", "svg", "iframe"} & set(made)
        shown = await page.shown(".answer .rich")
        assert all(part in shown for part in text.replace("```", "").strip().split("\n")), shown
    assert await page.run("return typeof window.hacked") == "undefined"


async def test_html_cannot_be_made_at_all(page: Page, complaints: list[str]) -> None:
    complaints.append("Trusted Type|TrustedHTML|Content Security Policy")
    script = "try { document.body.innerHTML = '<p>'; return 'made' } catch (error) { return error.name }"
    assert await page.run(script) == "TypeError"
    blocked = await page.run(
        "return new Promise((tell) => {"
        "  document.addEventListener('securitypolicyviolation', (event) => tell(event.effectiveDirective));"
        "  const made = document.createElement('img');"
        "  made.src = 'http://127.0.0.1:1/x.png';"
        "});"
    )
    assert blocked == "img-src"


async def test_an_answer_can_be_copied(page: Page, scheduler: WatchedScheduler, model: ServedModel) -> None:
    granted = {"origin": page.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    await page.command("Browser.grantPermissions", granted)
    scheduler.play = says(model, "**hello** `world`")
    await page.ask("Say it.")
    await page.until_shown(".figures", "finished")
    await page.click(".turn .actions button")
    await page.until_shown(".turn .actions button", "Copied")
    assert await page.run("return navigator.clipboard.readText()") == "**hello** `world`"
