from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import structlog

from tercet.tracing.context import TraceContext
from tercet.tracing.exporting import BATCH_SPANS, Exporting
from tercet.tracing.settings import TracesSettings
from tercet.tracing.span import Content, Message, Span
from tercet.tracing.tracer import open_tracer

from ..tercet import certificates
from .otlp_receiver import Receiver

LIMIT_S = 60.0


def span(number: int) -> Span:
    return Span("a", TraceContext(1, number + 1, True), 0, number, number + 1, {"number": number})


class Collector:
    """Takes batches when it is let, unless it is `broken`."""

    def __init__(self) -> None:
        self.taken: list[Span] = []
        self.sizes: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.waits = threading.Event()
        self.broken: Exception | bool = False

    def send(self, spans: Sequence[Span]) -> bool:
        self.waits.set()
        self.open.wait()
        if isinstance(self.broken, Exception):
            raise self.broken
        if self.broken:
            return False
        self.taken += spans
        self.sizes.append(len(spans))
        return True

    def close(self) -> None:
        if not self.open.is_set():
            self.broken = True
            self.open.set()


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.002)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.open.set()


def test_all_spans_come_in_their_order_and_in_bounded_batches(collector: Collector) -> None:
    exporting = Exporting(collector, 10_000, batch_s=0.01)
    for number in range(3 * BATCH_SPANS + 7):
        exporting.put(span(number))
    exporting.stop()
    assert [each.started_ns for each in collector.taken] == list(range(3 * BATCH_SPANS + 7))
    assert max(collector.sizes) <= BATCH_SPANS
    assert (exporting.num_sent, exporting.num_dropped) == (len(collector.taken), 0)


def test_whoever_puts_spans_never_waits_for_a_slow_collector_and_what_is_too_much_is_counted(
    collector: Collector,
) -> None:
    collector.open.clear()
    with structlog.testing.capture_logs() as logs:
        exporting = Exporting(collector, 10, batch_s=0.001)
        exporting.put(span(0))
        # One batch is in the collector's hands for as long as it likes.
        assert collector.waits.wait(LIMIT_S)
        for number in range(1, 51):
            exporting.put(span(number))
        assert exporting.num_dropped == 40
        exporting.stop(timeout_s=0.4)
    assert exporting.num_sent + exporting.num_dropped == 51
    told = [each for each in logs if each["event"] == "spans_dropped"]
    assert sum(each["spans"] for each in told) == exporting.num_dropped


@pytest.mark.parametrize("broken", [True, RuntimeError("of no use")])
def test_a_collector_that_takes_nothing_is_tried_again_after_a_pause(
    collector: Collector, broken: Exception | bool
) -> None:
    collector.broken = broken
    now = [0.0]
    with structlog.testing.capture_logs() as logs:
        exporting = Exporting(collector, 100, clock=lambda: now[0], batch_s=0.001)
        exporting.put(span(0))
        until(lambda: exporting.num_dropped == 1)
        collector.broken = False
        exporting.put(span(1))
        # It waits for a second, and goes on by itself.
        until(lambda: exporting.num_sent == 1)
        for number in range(2, 5):
            exporting.put(span(number))
        exporting.stop()
    assert [each.started_ns for each in collector.taken] == [1, 2, 3, 4]
    assert [each["spans"] for each in logs if each["event"] == "spans_dropped"] == [1]
    assert "of no use" not in str(logs)


def test_lines_about_dropped_spans_are_a_minute_apart(collector: Collector) -> None:
    now = [1000.0]
    collector.open.clear()
    with structlog.testing.capture_logs() as logs:
        exporting = Exporting(collector, 1, clock=lambda: now[0], batch_s=0.001)
        exporting.put(span(0))
        assert collector.waits.wait(LIMIT_S)
        for round_ in range(4):
            for _ in range(5):
                exporting.put(span(1))
            now[0] += 20.0
            exporting._tell()
            assert len([each for each in logs if each["event"] == "spans_dropped"]) == 1 + (round_ == 3)
        collector.open.set()
        exporting.stop()


def test_the_end_waits_for_a_bounded_time(collector: Collector) -> None:
    collector.close = lambda: None  # type: ignore[method-assign]  # even one that cannot be stopped
    collector.open.clear()
    exporting = Exporting(collector, 10, batch_s=0.001)
    exporting.put(span(0))
    assert collector.waits.wait(LIMIT_S)
    exporting.put(span(1))
    exporting.stop(timeout_s=0.2)
    assert exporting.num_dropped >= 1
    assert exporting._thread.is_alive()


async def test_over_otlp_a_span_is_what_it_was() -> None:
    receiver = Receiver()
    try:
        settings = TracesSettings(
            endpoint=receiver.endpoint,
            content="sampled",
            redact=("s[a-z]+t",),
            content_max_chars=9,
            content_retention_days=2,
        )
        tracer = open_tracer(settings, "gateway", "one", {"tercet.device": "cpu"})
        content = Content((Message("user", "a secret, and more"),), (Message("assistant", "né"),))
        context = TraceContext(2**127, 2**63, True, "a=b")
        link = TraceContext(5, 6, True)
        tracer.put(
            Span(
                "chat m",
                context,
                9,
                1_000,
                3_000,
                {"words": ("x", "y"), "n": 3},
                links=(link,),
                error="BAD",
                content=content,
            )
        )
        await tracer.stop()
        (got,) = receiver.spans()
        assert (got.trace_id, got.id, got.parent) == (f"{2**127:032x}", f"{2**63:016x}", f"{9:016x}")
        assert (got.span.start_time_unix_nano, got.span.end_time_unix_nano) == (1_000, 3_000)
        assert got.attributes == {"words": ["x", "y"], "n": 3, "error.type": "BAD"}
        assert (got.failed, got.span.trace_state) == (True, "a=b")
        assert [bytes(each.span_id) for each in got.span.links] == [(6).to_bytes(8, "big")]
        assert (got.resource["service.instance.id"], got.resource["tercet.device"]) == ("one", "cpu")
        # The cut is behind what was taken out.
        assert b"secret" not in receiver.bytes
        assert b"a [REDACT" in receiver.bytes
    finally:
        receiver.stop()


async def test_over_tls_the_collector_is_known_by_the_environments_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path)
    pair = [(tmp_path / name).read_bytes() for name in ("edge-key.pem", "edge.pem")]
    receiver = Receiver(credentials=grpc.ssl_server_credentials([(pair[0], pair[1])]))
    try:
        for ca, taken in ((tmp_path / "ca.pem", 1), (None, 0)):
            if ca is not None:
                monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(ca))
            else:
                monkeypatch.delenv("OTEL_EXPORTER_OTLP_CERTIFICATE")
            tracer = open_tracer(TracesSettings(endpoint=receiver.endpoint), "gateway", "one")
            tracer.put(span(taken))
            await tracer.stop()
            assert len(receiver.spans()) == 1
    finally:
        receiver.stop()
