"""The work that all benches do: shapes, lengths and request mixes, the same as peers are measured on."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-family model by its numbers, and how much work to give it."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool = False


PRESETS = {
    "8b": Shape(4096, 14336, 32, 32, 8, 128, 128256),
    "1b": Shape(2048, 8192, 16, 32, 8, 64, 128256, tie_word_embeddings=True),
    "tiny": Shape(576, 1536, 30, 9, 3, 64, 49152),
}


@dataclass(frozen=True, slots=True)
class Work:
    """Decode at each (context, batches), a prefill of `prefill` = (prompts, length), one first token, and a mix."""

    decode: tuple[tuple[int, tuple[int, ...]], ...]
    outputs: tuple[int, int]  # step time is the difference quotient between these output lengths
    prefill: tuple[int, int]
    first_token_prompt: int
    mix_requests: int
    mix_max_output: int


BIG = Work(((512, (1, 8, 32, 64, 128, 256)), (2048, (1, 32, 128))), (33, 161), (32, 2048), 512, 1000, 1024)
SMALL = Work(((256, (1, 8, 16)),), (9, 41), (4, 256), 64, 24, 64)


def work_for(preset: str) -> Work:
    """The work of a preset."""
    return SMALL if preset == "tiny" else BIG


@dataclass(frozen=True, slots=True)
class Request:
    """Random token ids in, `max_tokens` greedy tokens out, end tokens ignored."""

    prompt: tuple[int, ...]
    max_tokens: int


def prompts(count: int, length: int, vocab_size: int, rng: random.Random) -> list[tuple[int, ...]]:
    """`count` random prompts of `length` tokens."""
    return [tuple(rng.randrange(3, vocab_size) for _ in range(length)) for _ in range(count)]


def mixed(work: Work, vocab_size: int, seed: int = 0) -> list[Request]:
    """Log-normal prompt (mean about 220) and output lengths (mean about 195), clipped to 4..1024."""
    rng = random.Random(seed)

    def length(sigma: float) -> int:
        return max(4, min(1024, int(rng.lognormvariate(4.9, sigma))))

    lengths = [(length(1.0), length(0.85)) for _ in range(work.mix_requests)]
    tokens = random.Random(seed + 1)
    return [
        Request(prompts(1, prompt, vocab_size, tokens)[0], min(output, work.mix_max_output))
        for prompt, output in lengths
    ]
