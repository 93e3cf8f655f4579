"""A model without weights: its next token is a hash of all tokens in the sequence's KV cache.

It keeps token ids in the K cache, finds them again through slots and block tables, and so notices every mistake in
addressing, chunking, prefix reuse or release that would change a real model's output.
"""

from __future__ import annotations

from bisect import bisect_left

import torch

from worker.model.config import ModelConfig
from worker.ops.attention import AttentionBatch

VOCAB_SIZE = 97

CONFIG = ModelConfig(
    family="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    max_position=4096,
    max_model_len=4096,
)


def next_token(token_ids: list[int]) -> int:
    """The token that follows `token_ids`."""
    state = 1
    for token_id in token_ids:
        state = (state * 31 + token_id + 7) % 1_000_003
    return state % VOCAB_SIZE


def continuation(prompt: list[int], count: int) -> list[int]:
    """The `count` greedy tokens after `prompt`: what any schedule must produce."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def _find(ends: list[int], index: int) -> int | None:
    """The row of a token; `ends` are the last tokens of the rows."""
    row = bisect_left(ends, index)
    return row if row < len(ends) else None


class RecallModel:
    """See the module. `fail_on` makes forward raise when that token id is computed."""

    config = CONFIG

    def __init__(self, fail_on: int | None = None, nan_on: int | None = None) -> None:
        self.fail_on = fail_on
        self.nan_on = nan_on
        self.tokens_computed = 0

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv: list[tuple[torch.Tensor, torch.Tensor]],
        batch: AttentionBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [R, V]: one for the next token, zero elsewhere."""
        if self.fail_on is not None and bool((token_ids == self.fail_on).any()):
            raise RuntimeError("device fault")
        written = batch.slots >= 0
        self.tokens_computed += int(written.sum())
        k_cache = kv[0][0]  # [N, 1, S, 8]
        block_size, slots = k_cache.shape[2], batch.slots[written]
        k_cache[slots // block_size, 0, slots % block_size, 0] = token_ids[written].to(k_cache.dtype)
        logits = torch.zeros(len(logit_rows), VOCAB_SIZE)
        ends = (batch.query_starts[1:] - 1).tolist()
        for row, index in enumerate(logit_rows.tolist()):
            sequence = _find(ends, index)
            length = 0 if sequence is None else int(batch.context_lens[sequence]) - (ends[sequence] - index)
            if length <= 0:
                continue  # of no sequence
            assert int(positions[index]) == length - 1
            blocks = batch.block_tables[sequence, : -(-length // block_size)].long()
            seen = k_cache[blocks, 0, :, 0].reshape(-1)[:length].long().tolist()
            logits[row, next_token(seen)] = 1.0
            if self.nan_on is not None and self.nan_on in seen:
                logits[row] = float("nan")
        return logits

    def states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv: list[tuple[torch.Tensor, torch.Tensor]],
        batch: AttentionBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """As of a model whose head changes nothing."""
        return self.forward(token_ids, positions, kv, batch, logit_rows)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """See `states`."""
        return states
