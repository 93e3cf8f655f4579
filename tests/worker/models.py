"""Tiny random checkpoints of every family, and a driver that runs a model over a paged cache as a worker would."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from worker.model.decoder import Model
from worker.ops.attention import AttentionBatch

VOCAB_SIZE = 211

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
_CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# 12 elements of the 16 of a head, as of Phi-4-mini 96 of 128.
_PARTIAL = {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-multi-head-tied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama-llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **_LLAMA3}}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-wide-window": ("mistral", {"sliding_window": 256, "head_dim": 32}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2-yarn-tied": (
        "qwen2",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-biases-tied": ("qwen3", {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": True}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "qwen2-window": ("qwen2", {"sliding_window": 33, "use_sliding_window": True, "max_window_layers": 1}),
    "gemma2": ("gemma2", {"num_hidden_layers": 3, "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 20}),
    "gemma2-uncapped": (
        "gemma2",
        {
            "sliding_window": 64,
            "head_dim": 16,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "head_dim": 32,
            "sliding_window": 16,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "phi3": ("phi3", {}),
    "phi3-partial-rotary": ("phi3", {"rope_parameters": {**_PARTIAL, "rope_type": "default"}}),
    "phi3-partial-longrope": (
        "phi3",
        {
            "rope_parameters": {
                **_PARTIAL,
                "rope_type": "longrope",
                "factor": 4.0,
                "short_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0],
                "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "phi3-window-tied": ("phi3", {"sliding_window": 31, "tie_word_embeddings": True}),
}


def tiny_reference(family: str, seed: int = 0, **settings: Any) -> Any:
    """A transformers model in float32 whose every weight is random, norms and biases too."""
    config_class, model_class = _CLASSES[family]
    settings = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **_BASE, **settings}
    reference = model_class(config_class(**settings)).to(torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            weight.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.15, generator=generator)
    return reference


def save_tiny(directory: Path, family: str, seed: int = 0, max_shard_size: str = "1GB", **settings: Any) -> Any:
    """Saves a `tiny_reference` to `directory` as a Hugging Face checkpoint and returns it."""
    reference = tiny_reference(family, seed, **settings)
    reference.save_pretrained(directory, max_shard_size=max_shard_size)
    return reference


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps a transformers model on the calling thread: on a busy machine its threads wait for each other for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def reference_logits(reference: Any, token_ids: Sequence[int]) -> Tensor:
    """[T, V] of a transformers model over one sequence, in one pass."""
    with _one_thread():
        logits: Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits


@torch.no_grad()
def reference_greedy(reference: Any, token_ids: Sequence[int], count: int) -> list[int]:
    """The next `count` greedy tokens of a transformers model, whatever ends a text."""
    prompt = torch.tensor([token_ids])
    reference.generation_config.eos_token_id = None
    with _one_thread():
        out = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count, pad_token_id=0
        )
    tokens: list[int] = out[0, len(token_ids) :].tolist()
    return tokens


def random_prompts(lengths: Sequence[int], seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    """One prompt of random token ids per length."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


class PagedRunner:
    """Runs sequences, named by index, over a poisoned cache with shuffled blocks."""

    def __init__(self, model: Model, block_size: int = 16, num_blocks: int = 32, seed: int = 0) -> None:
        config = model.config
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
        # Whatever reads a slot before it is written shows up as NaN.
        poison = torch.full(shape, float("nan"), dtype=model.dtype, device=model.device)
        self.kv = [(poison.clone(), poison.clone()) for _ in range(config.num_layers)]
        self.model = model
        self.block_size = block_size
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def step(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Runs one chunk of each sequence in one forward pass; returns the logits [chunk, V] of each."""
        starts, contexts, positions, slots, tokens = [0], [], [], [], []
        for sequence, chunk in chunks.items():
            table = self._tables.setdefault(sequence, [])
            begin = self._lengths.get(sequence, 0)
            end = self._lengths[sequence] = begin + len(chunk)
            while len(table) * self.block_size < end:
                table.append(self._free.pop())
            starts.append(starts[-1] + len(chunk))
            contexts.append(end)
            positions += range(begin, end)
            slots += [table[p // self.block_size] * self.block_size + p % self.block_size for p in range(begin, end)]
            tokens += chunk
        width = max(len(self._tables[sequence]) for sequence in chunks)
        tables = [self._tables[sequence] + [0] * (width - len(self._tables[sequence])) for sequence in chunks]
        device = self.model.device
        batch = AttentionBatch(
            query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
            slots=torch.tensor(slots, device=device),
        )
        logits = self.model.forward(
            torch.tensor(tokens, device=device),
            torch.tensor(positions, device=device),
            self.kv,
            batch,
            torch.arange(len(tokens), device=device),
        )
        return dict(zip(chunks, logits.split([b - a for a, b in itertools.pairwise(starts)]), strict=True))

    def prefill(self, prompts: Mapping[int, Sequence[int]], chunk: int) -> dict[int, Tensor]:
        """Runs prompts side by side, `chunk` tokens of each a step; returns all logits [prompt, V] of each."""
        out: dict[int, list[Tensor]] = {sequence: [] for sequence in prompts}
        for begin in range(0, max(map(len, prompts.values())), chunk):
            step = {s: prompt[begin : begin + chunk] for s, prompt in prompts.items() if begin < len(prompt)}
            for sequence, logits in self.step(step).items():
                out[sequence].append(logits)
        return {sequence: torch.cat(parts) for sequence, parts in out.items()}

    def greedy(self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int = 64) -> dict[int, list[int]]:
        """Prefills, then decodes `count` tokens of each sequence in one batch."""
        last = {sequence: logits[-1] for sequence, logits in self.prefill(prompts, chunk).items()}
        out: dict[int, list[int]] = {sequence: [] for sequence in prompts}
        for _ in range(count):
            tokens = {sequence: int(logits.argmax()) for sequence, logits in last.items()}
            for sequence, token in tokens.items():
                out[sequence].append(token)
            last = {s: logits[-1] for s, logits in self.step({s: [token] for s, token in tokens.items()}).items()}
        return out
