"""The benches' figures, from an engine whose times are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.measure import measure
from bench.workload import SMALL, Request, mixed

STEP_S, TOKEN_S = 0.010, 0.0001


def run(requests: Sequence[Request]) -> tuple[float, int]:
    """Prefills at a fixed rate, then decodes all at once at a fixed step time: seconds and tokens."""
    prefill = TOKEN_S * sum(len(request.prompt) for request in requests)
    steps = max(request.max_tokens for request in requests) - 1
    return prefill + steps * STEP_S, sum(request.max_tokens for request in requests)


def test_the_figures_are_those_of_the_engine() -> None:
    figures = measure(run, SMALL, vocab_size=1000)
    assert set(figures) == {"decode", "prefill_tok_s", "ttft_1req_ms", "mixed"}
    assert set(figures["decode"]) == {"ctx256_b1", "ctx256_b8", "ctx256_b16"}
    for batch in (1, 8, 16):
        step = figures["decode"][f"ctx256_b{batch}"]
        assert step == {"step_ms": pytest.approx(10.0), "tok_s": pytest.approx(100.0 * batch)}
    assert figures["prefill_tok_s"] == pytest.approx(1 / TOKEN_S)
    assert figures["ttft_1req_ms"] == pytest.approx(64 * TOKEN_S * 1e3)
    requests = mixed(SMALL, 1000)
    seconds, tokens = run(requests)
    assert figures["mixed"] == {
        "requests": 24,
        "seconds": pytest.approx(seconds),
        "req_s": pytest.approx(24 / seconds),
        "out_tok_s": pytest.approx(tokens / seconds),
        "in_tokens": sum(len(request.prompt) for request in requests),
        "out_tokens": tokens,
    }
