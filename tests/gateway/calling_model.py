"""A model whose template shows all that a chat may have, and answers of it as the test writes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from gateway.served_model import ServedModel
from tercet.mesh.v1 import sequence_pb2

from .conftest import make_byte_tokenizer, sequence_end, write_model
from .prompt_parts import send_part

END = 261
TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% if documents %}{{ documents | tojson }}{% endif %}"
    "{% if mood is defined %}{{ mood }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{% if m.name %}{{ m.name }}: "
    "{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS][{{ call.function | tojson }}]"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_calling_model(path: Path) -> Path:
    """The directory of one that calls tools as Mistral's do."""
    backend = make_byte_tokenizer()
    backend.add_special_tokens([AddedToken("[TOOL_CALLS]", normalized=False, special=True)])
    return write_model(
        path,
        config__json={"vocab_size": 280, "max_position_embeddings": 2048, "eos_token_id": END},
        tokenizer_config__json={"bos_token": "<s>", "eos_token": "<|end|>", "chat_template": TEMPLATE},
        tokenizer__json=backend.to_str(),
    )


def answering(scheduler: Any, model: ServedModel, *answers: str) -> list[int]:
    """Makes every request be answered so, token by token and output by output. The tokens of the first."""
    ids = [[*model.tokenizer.encode(answer, add_bos=False), END] for answer in answers]

    async def play(sequence: Any) -> None:
        await _show_prompt(scheduler, sequence)
        for index, output in enumerate(sequence.outputs):
            await _say(output, ids[index % len(ids)], sequence.submit)

    scheduler.play = play
    return ids[0]


def answering_in_turn(scheduler: Any, model: ServedModel, *answers: str) -> None:
    """Makes the requests that come be answered so, one after the other."""
    left = [[*model.tokenizer.encode(answer, add_bos=False), END] for answer in answers]

    async def play(sequence: Any) -> None:
        await _say(sequence, left.pop(0), sequence.submit)

    scheduler.play = play


async def _show_prompt(scheduler: Any, sequence: Any) -> None:
    """The logprobs of a prompt, where they are asked for."""
    behind_first = len(sequence.submit.prompt_token_ids) - 1
    if behind_first and sequence.submit.sampling.HasField("num_prompt_logprobs"):
        part = sequence_pb2.PromptLogprobs(sequence_id=sequence.sequence_id, first=1, logprobs=[-0.5] * behind_first)
        await send_part(scheduler, part)


async def _say(output: Any, ids: list[int], submit: Any) -> None:
    """All of it, as far as it is wanted, and the end."""
    shown = sequence_pb2.TokenLogprobs(sequence_id=output.sequence_id, logprob=-1)
    logprobs = [shown] if submit.sampling.HasField("num_logprobs") else []
    end = sequence_end(sequence_pb2.END_REASON_LENGTH)
    if len(ids) <= submit.max_tokens:
        end = sequence_end(sequence_pb2.END_REASON_STOP, stop_token_id=END)
    *some, last = ids[: submit.max_tokens]
    for token_id in some:
        if not output.stopped.is_set():
            await output.tokens(token_id, logprobs=logprobs)
            await asyncio.sleep(0)
    if not output.stopped.is_set():
        await output.tokens(last, end=end, logprobs=logprobs)
