from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.mesh.v1 import sequence_pb2
from tercet.tracing.context import MAX_STATE_CHARS, TraceContext, context_of, read_context
from tercet.tracing.messages import context_from_proto, context_to_proto

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"

contexts = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.sampled_from(["", "a=b", "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7", "t@v=x y"]),
)


def test_the_example_of_the_specification() -> None:
    context = read_context(PARENT, "congo=t61rcWkgMzE")
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), True, "congo=t61rcWkgMzE")
    assert context is not None
    assert (context.traceparent, context.trace_hex) == (PARENT, TRACE)


@given(contexts)
def test_what_is_sent_is_what_is_read(context: TraceContext) -> None:
    assert read_context(context.traceparent, context.state) == context
    message = context_to_proto(context)
    assert message is not None
    assert context_from_proto(sequence_pb2.TraceContext.FromString(message.SerializeToString())) == context


@pytest.mark.parametrize("flags", range(256))
def test_the_last_bit_of_the_flags_decides(flags: int) -> None:
    context = read_context(f"00-{TRACE}-{SPAN}-{flags:02x}")
    assert context is not None
    assert context.sampled is bool(flags & 1)


@pytest.mark.parametrize(
    "text",
    [
        "", "-", PARENT[:-1], PARENT + "0", PARENT + "-", PARENT + "-more", PARENT.upper(), f" {PARENT}",
        f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g", f"00-{TRACE}-{SPAN}-0١", PARENT.replace("-", "_"),
        f"00-{TRACE[1:]}-{SPAN}-01", PARENT + "\n",
    ],
)  # fmt: skip
def test_what_is_malformed_is_no_context(text: str) -> None:
    assert read_context(text) is None


@pytest.mark.parametrize("more", ["", "-", "-what-will-be"])
def test_later_versions_may_say_more(more: str) -> None:
    assert read_context(f"cc-{TRACE}-{SPAN}-01{more}") == read_context(PARENT)
    assert read_context(f"cc-{TRACE}-{SPAN}-01x{more}") is None


@pytest.mark.parametrize(
    "state", ["no equals", "A=b", "a=b,,c=d", "a=" + "x" * MAX_STATE_CHARS, "a=b\n", "a=é", "=b", "a=b=c"]
)
def test_a_malformed_state_is_left_out_and_the_rest_holds(state: str) -> None:
    assert read_context(PARENT, state) == read_context(PARENT)


@given(st.text(), st.text())
def test_no_text_is_too_strange(parent: str, state: str) -> None:
    assert read_context(parent, state) is None or re.match("[0-9a-f]{2}-", parent)
    found = read_context(PARENT, state)
    assert found is not None
    assert found.state.isascii()
    assert len(found.state) <= MAX_STATE_CHARS


@given(st.lists(st.tuples(st.sampled_from(["traceparent", "tracestate", "other"]), st.one_of(st.text(), st.binary()))))
def test_no_headers_are_too_strange(headers: list[tuple[str, str | bytes]]) -> None:
    context_of(headers)


def test_a_context_is_in_one_header_and_its_state_in_several() -> None:
    assert context_of([("tracestate", "a=b"), ("traceparent", PARENT), ("tracestate", "c=d")]) == read_context(
        PARENT, "a=b,c=d"
    )
    assert context_of([("traceparent", PARENT)] * 2) is None
    assert context_of([("traceparent", PARENT.encode())]) is None
    assert context_of([]) is None
