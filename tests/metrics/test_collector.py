import asyncio
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tercet.metrics.collector import COMMON, LoopCollector, make_registry
from tercet.metrics.distribution import Distribution
from tercet.metrics.exposition import expose
from tercet.metrics.metric import Reading, counter, gauge, histogram

REQUESTS = counter("tercet_test_requests_total", "requests", "class", "reason")
WAITING = gauge("tercet_test_waiting", "waiting")
SECONDS = histogram("tercet_test_seconds", "seconds", "class")
UNUSED = counter("tercet_test_unused_total", "never")
METRICS = (REQUESTS, WAITING, SECONDS, UNUSED)


def _reading():
    reading = Reading()
    reading.put(REQUESTS, 3, "chat", "")
    reading.put(REQUESTS, 1, "", 'with "quotes"\nand lines')
    reading.put(WAITING, 2)
    distribution = Distribution((0.5, 1.0))
    for value in (0.1, 0.5, 0.7, 9.0):
        distribution.add(value)
    reading.put(SECONDS, distribution, "chat")
    return reading


def _values(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("accept", ["", "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"])
async def test_what_the_loop_knows_is_told_in_the_format_that_is_asked_for(accept):
    registry = make_registry("tester", METRICS, _reading)
    body, kind = await asyncio.to_thread(expose, registry, accept)
    assert ("openmetrics" in accept) is ("openmetrics" in kind) is body.endswith(b"# EOF\n")
    text = body.decode().replace("# EOF\n", "")
    values = _values(text)
    assert values["tercet_test_requests_total", (("class", "chat"), ("reason", ""))] == 3
    assert values["tercet_test_requests_total", (("class", ""), ("reason", 'with "quotes"\nand lines'))] == 1
    assert values["tercet_test_waiting", ()] == 2
    buckets = [values["tercet_test_seconds_bucket", (("class", "chat"), ("le", le))] for le in ("0.5", "1", "+Inf")]
    assert buckets == [2, 3, 4]
    assert values["tercet_test_seconds_count", (("class", "chat"),)] == 4
    assert values["tercet_test_seconds_sum", (("class", "chat"),)] == pytest.approx(10.3)
    assert values["tercet_metrics_age_seconds", ()] == 0
    # Also what nothing has come of yet is described.
    assert "# HELP tercet_test_unused" in text
    assert values["process_cpu_seconds_total", ()] > 0
    for metric in COMMON:
        assert any(name == metric.name for name, _ in values)


async def test_a_look_is_taken_in_the_loop():
    where = []

    def look():
        where.append(threading.current_thread())
        return _reading()

    await asyncio.to_thread(expose, make_registry("tester", METRICS, look), "")
    assert where == [threading.main_thread()]


async def test_a_loop_that_does_not_answer_is_told_by_its_last_look():
    now = [100.0]
    collector = LoopCollector("tester", METRICS, _reading, limit_s=0.05, clock=lambda: now[0])
    await asyncio.to_thread(lambda: list(collector.collect()))
    told, done = [], threading.Event()

    def scrape():
        told.extend(collector.collect())
        done.set()

    now[0] = 107.0
    threading.Thread(target=scrape).start()
    # This is the loop, which is busy until the scrape has its answer.
    assert done.wait(20)
    values = {sample.name: sample.value for family in told for sample in family.samples}
    assert values["tercet_metrics_age_seconds"] == 7.0
    assert values["tercet_test_waiting"] == 2


async def test_before_the_first_look_there_is_nothing_but_what_is_common():
    collector = LoopCollector("tester", METRICS, _reading, limit_s=0.01)
    told = [sample.name for family in collector.collect() for sample in family.samples]
    assert told == [metric.name for metric in COMMON]


async def test_a_bug_in_a_look_fails_the_scrape_and_not_the_service():
    def look():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(expose, make_registry("tester", METRICS, look), "")


def test_a_value_has_all_labels():
    with pytest.raises(AssertionError):
        Reading().put(REQUESTS, 1, "chat")
