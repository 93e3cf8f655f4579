"""What is said to FlashInfer, against a stand-in that takes its plans at their word."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.flashinfer_attention import flashinfer_calls
from tests.worker.test_attention import Sequences, make_sequences
from worker.ops.attention import AttentionBatch, paged_attention, paged_attention_reference

LENGTHS = [1, 16, 17, 40, 3]


@dataclass
class Wrapper:
    """Plans and runs as the documentation of FlashInfer's wrappers has it, for one of the two kinds."""

    workspace: Tensor
    kv_layout: str
    use_tensor_cores: bool = False
    planned: list[tuple[AttentionBatch, float]] = field(default_factory=list)
    decodes: bool = True

    def plan(self, *arguments: Any, causal: bool = False, sm_scale: float, q_data_type: Any, kv_data_type: Any) -> None:
        assert self.workspace.numel() >= 128 << 20
        assert self.kv_layout == "HND"
        assert causal is not self.decodes
        if self.decodes:
            assert self.use_tensor_cores
            arguments = torch.arange(len(arguments[0]), dtype=torch.int32), *arguments
        query_starts, starts, blocks, last_lengths, num_heads, num_kv_heads, head_dim, page_size = arguments
        assert (num_heads, num_kv_heads, head_dim) == (6, 2, 16)
        assert q_data_type is kv_data_type is torch.float32
        assert ((last_lengths >= 1) & (last_lengths <= page_size)).all()
        counts = starts.diff()
        tables = torch.full((len(counts), int(counts.max())), 10**6, dtype=torch.int32)
        for row, (begin, end) in enumerate(zip(starts.tolist(), starts[1:].tolist(), strict=False)):
            tables[row, : end - begin] = blocks[begin:end]
        slots = torch.zeros(int(query_starts[-1]), dtype=torch.int64)
        lengths = ((counts - 1) * page_size + last_lengths).to(torch.int32)
        self.planned.append((AttentionBatch(query_starts, lengths, tables, slots), sm_scale))

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        return paged_attention_reference(q, *cache, *self.planned[-1])


def stand_in(monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[Wrapper]:
    made: list[Wrapper] = []

    def wrapper(decodes: bool) -> Any:
        def make(*arguments: Any, **settings: Any) -> Wrapper:
            made.append(Wrapper(*arguments, decodes=decodes, **settings))
            return made[-1]

        return make

    module = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=wrapper(True), BatchPrefillWithPagedKVCacheWrapper=wrapper(False)
    )
    for name, value in more.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    return made


def sequences() -> Sequences:
    return make_sequences(LENGTHS, (6, 2), 16, 16, torch.float32)


@pytest.mark.parametrize("decodes", [True, False])
def test_the_same_result(monkeypatch: pytest.MonkeyPatch, decodes: bool) -> None:
    made = stand_in(monkeypatch)
    held = sequences()
    q, batch = held.batch([(b, n - 1 if decodes else n // 2, n) for b, n in enumerate(LENGTHS)])
    caches = [(held.k_cache, held.v_cache), (held.k_cache, -held.v_cache)]
    calls = flashinfer_calls(q, caches, batch, 0.3)
    assert calls is not None
    assert [wrapper.decodes for wrapper in made] == [decodes]
    for call, cache in zip(calls, caches, strict=True):
        torch.testing.assert_close(call(), paged_attention(q, *cache, batch, 0.3))
    assert len(made[0].planned) == 1


def test_no_peer_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    held = sequences()
    q, batch = held.batch([(1, 0, 16)])
    assert flashinfer_calls(q, [(held.k_cache, held.v_cache)], batch, 0.3) is None


def test_no_peer_where_it_has_no_kernel_or_other_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Ninja build failed")

    held = sequences()
    q, batch = held.batch([(1, 0, 16)])
    stand_in(monkeypatch, BatchPrefillWithPagedKVCacheWrapper=refuse)
    assert flashinfer_calls(q, [(held.k_cache, held.v_cache)], batch, 0.3) is None
    assert "Ninja build failed" in capsys.readouterr().err
    stand_in(monkeypatch)
    monkeypatch.setattr(Wrapper, "run", lambda _, q, cache: torch.zeros_like(q))
    assert flashinfer_calls(q, [(held.k_cache, held.v_cache)], batch, 0.3) is None
    assert "not close" in capsys.readouterr().err
