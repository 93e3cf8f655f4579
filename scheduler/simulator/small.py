"""A small worker and a small request, to be changed where it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..events import Sampling, Submission, WorkerInfo
from .text import VOCAB

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


def worker_info(**changes: Any) -> WorkerInfo:
    """A worker with 32 blocks of 4 tokens, 8 sequences and 16 tokens a step."""
    values: dict[str, Any] = {
        "worker_id": "worker-sim",
        "epoch": 1,
        "model": "tiny",
        "model_revision": "r1",
        "device": "cpu",
        "dtype": "float32",
        "block_size": 4,
        "num_blocks": 32,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_model_len": 128,
        "vocab_size": VOCAB,
    }
    return WorkerInfo(**{**values, **changes})


def submission(key: int, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 8, **changes: Any) -> Submission:
    """A request for the model of that worker."""
    values: dict[str, Any] = {
        "request_key": key,
        "request_id": f"req-{key}",
        "model": "tiny",
        "model_revision": "r1",
        "prompt_token_ids": tuple(prompt),
        "max_tokens": max_tokens,
        "stop_token_ids": (),
        "sampling": GREEDY,
        "deadline_s": None,
        "prefix_salt": b"",
    }
    return Submission(**{**values, **changes})
