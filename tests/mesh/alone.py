"""What a sequence generates when it has an executor for itself, one step at a time."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from tests.worker.grammar_process import LocalGrammars
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import Attach, Chunk, EndReason, Event, NewSequence, Plan, Sampling, StepResult
from worker.ops.attention import AttentionBatch

from .models import CPU, MAX_MODEL_LEN, model_of, poison

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Lone:
    """All that its text may depend on."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    stops: frozenset[int]
    sampling: Sampling


@functools.lru_cache(maxsize=1_000)
def prompt_logprobs_alone(model_name: str, prompt: tuple[int, ...], num_top: int) -> list[tuple[float, list[float]]]:
    """Of each token of a prompt but the first its logprob, and those of the likeliest."""
    model = model_of(model_name)
    kv_cache = KVCache(model.config, 1, MAX_MODEL_LEN, torch.float32, CPU, enable_prefix_caching=False)
    token_ids, num_tokens = torch.tensor(prompt), len(prompt)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        slots=torch.arange(num_tokens),
        total_context=num_tokens,
    )
    positions = torch.arange(num_tokens)
    logits = model.forward(token_ids, positions, kv_cache.layers, batch, positions)
    found = logits.double().log_softmax(dim=1)[:-1]
    own = found.gather(1, token_ids[1:, None])[:, 0]
    return list(zip(own.tolist(), found.topk(num_top, dim=1).values.tolist(), strict=True))


@functools.lru_cache(maxsize=20_000)
def run_alone(lone: Lone) -> tuple[tuple[int, ...], EndReason]:
    """The generated tokens and why they end: the whole prompt in one step, no prefix cache, plans of one step."""
    model = model_of(lone.model)
    blocks = -(-MAX_MODEL_LEN // _BLOCK_SIZE)
    kv_cache = KVCache(model.config, blocks, _BLOCK_SIZE, torch.float32, CPU, enable_prefix_caching=False)
    poison(kv_cache.layers)
    executor = Executor(HostSteps(model, kv_cache), kv_cache, grammars=LocalGrammars())  # type: ignore[arg-type]
    events: list[Event] = []
    executor.submit(Attach(events.append))
    executor.submit(
        NewSequence(1, lone.prompt, len(lone.prompt) + lone.max_tokens, lone.stops, lone.sampling),
    )
    tokens: list[int] = []
    for plan_seq in itertools.count(1):
        first = plan_seq == 1
        executor.submit(Plan(plan_seq, 1, (Chunk(1, len(lone.prompt)),) if first else (), (1,) if first else ()))
        executor.obey()
        executor.step()
        for event in events:
            if isinstance(event, StepResult):
                tokens += event.token_ids
                for ended in event.ended:
                    assert ended.failure is None, ended.failure
                    return tuple(tokens), ended.reason
        events.clear()
        assert len(tokens) == plan_seq
    raise AssertionError("unreachable")
