"""``tercet generate``: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from tercet.cli.asking import (
    CONTROL_TIMEOUT_S,
    model_option,
    read_text,
    run_async,
    show_text,
    timeout_option,
)
from tercet.cli.connection import client_options
from tercet.cli.form_options import form_options
from tercet.cli.sampling_options import options_of, sampling_options
from tercet.cli.tools_file import to_choice, to_line, tool_choice_option, tools_option
from tercet.client import Answer, AsyncClient, ChatMessage, Options, Output, TokenLogprobs

# In the place of minus infinity, which JSON has not; over HTTP it is the same.
_LEAST_LOGPROB = -9999.0


class Printer:
    """Writes the outputs of a request to the terminal: the first as it comes, others below it once all have ended.

    Several have a heading each. Outputs that grow at once could not be read as they grow.
    """

    def __init__(self, num_outputs: int) -> None:
        self._num_outputs = num_outputs
        self._started = False

    def show(self, text: str) -> None:
        """Writes a piece of the first output."""
        if not self._started:
            self._started = True
            self._head(0)
        show_text(text)

    def finish(self, answer: Answer) -> None:
        """Writes what is left."""
        self.show("")
        self._show_calls(answer.outputs[0])
        for index, output in enumerate(answer.outputs[1:], start=1):
            show_text("\n")
            self._head(index)
            show_text(output.text)
            self._show_calls(output)
        show_text("\n")

    def _show_calls(self, output: Output) -> None:
        lines = "\n".join(map(to_line, output.tool_calls))
        show_text(f"\n{lines}" if output.text and lines else lines)

    def _head(self, index: int) -> None:
        if self._num_outputs > 1:
            show_text(f"--- {index + 1} of {self._num_outputs}\n")


async def ask(
    client: AsyncClient,
    prompt: str,
    options: Options,
    *,
    chat: bool | None,
    timeout_s: float | None,
    on_text: Callable[[str], None] | None,
) -> Answer:
    """Generates. `chat` None: as a user message if the model has a chat template. Raises errors.RequestError."""
    async with client:
        if chat is None:
            chat = (await client.model(options.model, timeout_s=timeout_s or CONTROL_TIMEOUT_S)).chat
        # A model would answer an empty message with anything; an empty prompt the gateway refuses.
        message = [ChatMessage("user", prompt)] if chat and prompt else prompt
        async with client.generate(message, options, timeout_s=timeout_s) as generation:
            return await generation.answer(on_text)


def to_json(answer: Answer) -> str:
    """One object on one line; text, ids and end of the first output stand beside those of all."""
    prompt = answer.prompt_logprobs
    return json.dumps(
        {
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finished.finish_reason,
            "stop": answer.finished.stop,
            "logprobs": _shown(answer.outputs[0].logprobs),
            "prompt_logprobs": prompt and {**dataclasses.asdict(prompt), "logprobs": _shown(prompt.logprobs)},
            "tool_calls": [dataclasses.asdict(call) for call in answer.tool_calls],
            "outputs": [
                {
                    **dataclasses.asdict(output),
                    "logprobs": _shown(output.logprobs),
                    "seed": (answer.accepted.seed + index) % 2**64,
                }
                for index, output in enumerate(answer.outputs)
            ],
            "usage": dataclasses.asdict(answer.finished.usage),
            "timings": dataclasses.asdict(answer.finished.timings),
            "request_id": answer.accepted.request_id,
            "model": answer.accepted.model,
            "model_revision": answer.accepted.model_revision,
            "seed": answer.accepted.seed,
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _shown(logprobs: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    return [
        {
            "logprob": max(each.logprob, _LEAST_LOGPROB),
            "top": [(token_id, max(logprob, _LEAST_LOGPROB)) for token_id, logprob in each.top],
        }
        for each in logprobs
    ]


@click.command()
@click.argument("prompt")
@client_options
@model_option
@click.option("--chat/--raw", default=None, help="As one user message, or as it stands. Default: --chat if the model "
              "has a chat template.")  # fmt: skip
@click.option(
    "-n", type=click.IntRange(1, 128), metavar="N", help="Outputs, which share the prompt's work. Default: 1."
)
@tools_option
@tool_choice_option
@form_options
@sampling_options
@click.option("--prompt-logprobs", type=click.IntRange(0, 20), metavar="N", help="The same as --logprobs of the "
              "prompt's tokens (--json).")  # fmt: skip
@click.option("--request-id", default="", metavar="ID", help="What logs and cancels know it by. Default: a new one.")
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of streaming text.")
def generate(
    prompt: str,
    client: AsyncClient,
    model: str,
    chat: bool | None,
    timeout: float | None,
    as_json: bool,
    tool_choice: str,
    **sampling: Any,
) -> None:
    """Continue or answer PROMPT, and stream the text. PROMPT - reads standard input.

    With -n the first output is streamed; the others follow, each under a heading, once all have ended. Calls of --tools
    follow the text, one a line.

    A model with a chat template gets PROMPT as a user's message; --raw sends it as plain text to be continued. Ctrl-C
    cancels the request. On an error the reason and message go to standard error, and the exit code is 1.
    """
    if prompt == "-":
        prompt = read_text()
    choice, forced_tool = to_choice(tool_choice)
    options = options_of(model, {**sampling, "tool_choice": choice, "forced_tool": forced_tool})
    printer = Printer(options.n or 1)
    on_text = None if as_json else printer.show
    answer = run_async(ask(client, prompt, options, chat=chat, timeout_s=timeout, on_text=on_text))
    if as_json:
        show_text(f"{to_json(answer)}\n")
    else:
        printer.finish(answer)
