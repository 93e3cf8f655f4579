from __future__ import annotations

import builtins
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import ConfigErrors, load_config
from tercet.errors import ConfigError
from tercet.tracing.context import TraceContext
from tercet.tracing.sampler import is_sampled
from tercet.tracing.settings import TracesSettings
from tercet.tracing.span import token_bucket
from tercet.tracing.tracer import Tracer, open_tracer

from .kept_spans import KeptSpans

ratios = st.floats(0, 1, allow_nan=False)


@given(st.integers(0, 2**128 - 1), ratios, ratios)
def test_what_is_sampled_at_one_ratio_is_so_at_every_larger_one(trace_id: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert is_sampled(trace_id, low) <= is_sampled(trace_id, high)
    assert is_sampled(trace_id, 1.0)
    assert not is_sampled(trace_id, 0.0)


@given(ratios, st.integers(0, 2**32))
def test_so_many_of_all_are_sampled(ratio: float, seed: int) -> None:
    tracer = Tracer(KeptSpans(), ratio, draw=random.Random(seed).getrandbits)
    count = sum(tracer.begin(None) is not None for _ in range(2000))
    # Beyond six times the standard deviation.
    assert abs(count - 2000 * ratio) <= 6 * (2000 * ratio * (1 - ratio)) ** 0.5 + 1


@given(ratios, st.booleans())
def test_a_client_that_has_decided_is_followed(ratio: float, sampled: bool) -> None:
    parent = TraceContext(7, 8, sampled, "a=b")
    context = Tracer(KeptSpans(), ratio).begin(parent)
    assert (context is not None) is sampled
    if context is not None:
        assert (context.trace_id, context.sampled, context.state) == (7, True, "a=b")
        assert context.span_id not in (0, 8)


def test_without_an_endpoint_nothing_is_traced_and_nothing_imported() -> None:
    program = """
import sys
from tercet.tracing.context import TraceContext
from tercet.tracing.settings import TracesSettings
from tercet.tracing.tracer import open_tracer
tracer = open_tracer(TracesSettings(), "gateway", "one")
assert tracer.begin(TraceContext(1, 2, True)) is None and tracer.begin(None) is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_without_the_extra_an_endpoint_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    monkeypatch.delitem(sys.modules, "tercet.tracing.otlp", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"^traces\.endpoint: needs OpenTelemetry.*tercet\[traces\]"):
        open_tracer(TracesSettings(endpoint="http://127.0.0.1:4317"), "gateway", "one")


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4317", "http://host", "grpc://host:1", "http://host:port", "http://h:1/path"]
)
def test_an_endpoint_is_a_url_with_a_port(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"^traces\.endpoint: must be http"):
        load_config(flags={"traces.endpoint": endpoint})


def test_content_takes_patterns_and_a_time() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_config(flags={"traces.content": "sampled"})
    assert [each.key for each in caught.value.problems] == ["traces.redact", "traces.content_retention_days"]
    flags = {"traces.content": "sampled", "traces.redact": '["a{1,2}", "b"]', "traces.content_retention_days": "3"}
    assert load_config(flags=flags).traces.redact == ("a{1,2}", "b")
    with pytest.raises(ConfigError, match=r"^traces\.redact: '\(' is no regular expression"):
        load_config(flags={"traces.redact": "("})


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_buckets_of_tokens_are_few_and_in_order(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert int(token_bucket(low).split("-")[0]) <= int(token_bucket(high).split("-")[0])
    first, _, last = token_bucket(one).partition("-")
    assert int(first) <= one <= int(last or (first if first == "0" else one))
