import asyncio
import http.client
import socket
import urllib.error
import urllib.request

import pytest

from tercet.errors import ConfigError
from tercet.metrics import exposition
from tercet.metrics.collector import make_registry
from tercet.metrics.exposition import Exposition
from tercet.metrics.metric import Reading, gauge
from tercet.ports import free_ports
from tercet.sections import MetricsSettings

ANSWER = gauge("tercet_test_answer", "the answer")


def _registry(value=42):
    def look():
        if value is None:
            raise ZeroDivisionError
        reading = Reading()
        reading.put(ANSWER, value)
        return reading

    return make_registry("tester", [ANSWER], look)


def _get(port, path="/metrics", host="localhost"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"host": host})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


@pytest.fixture
async def port():
    port = free_ports(1)[0]
    served = Exposition(MetricsSettings(port=port), _registry())
    served.start()
    yield port
    served.stop()


async def test_metrics_are_told_at_their_path_alone(port):
    status, kind, text = await asyncio.to_thread(_get, port)
    assert (status, "tercet_test_answer 42.0" in text) == (200, True)
    assert kind.startswith("text/plain; version=0.0.4")
    assert (await asyncio.to_thread(_get, port, "/metrics?x=1"))[0] == 200
    for path in ("/", "/metric", "/metrics/", "/../metrics"):
        assert (await asyncio.to_thread(_get, port, path))[0] == 404


def _ask(port, method):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, "/metrics")
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


async def test_it_is_read_alone(port):
    status, headers, text = await asyncio.to_thread(_ask, port, "HEAD")
    assert (status, text) == (200, "")
    assert int(headers["content-length"]) > 0
    for method in ("POST", "DELETE", "STRANGE"):
        status, headers, text = await asyncio.to_thread(_ask, port, method)
        assert (status, headers["allow"], text) == (405, "GET, HEAD", "metrics are read, by GET or HEAD\n")


async def test_what_is_no_http_is_told_in_text(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/one\r\n\r\n")
    # Whose version nobody knows gets no head.
    assert await reader.read() == b"bad request\n"
    writer.close()


async def test_a_page_of_a_browser_that_means_another_host_learns_nothing(port):
    for host, wanted in (("evil.example", 421), ("localhost", 200), ("127.0.0.1:1", 200), ("", 421)):
        status, _, text = await asyncio.to_thread(_get, port, host=host)
        assert status == wanted, host
        assert ("tercet_test_answer" in text) is (wanted == 200)


async def test_a_bug_is_told_without_its_words():
    port = free_ports(1)[0]
    served = Exposition(MetricsSettings(port=port), _registry(None))
    served.start()
    try:
        status, _, text = await asyncio.to_thread(_get, port)
        assert (status, text) == (500, "the log says why\n")
    finally:
        served.stop()


async def test_who_says_nothing_takes_no_more_than_the_places_there_are(port):
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(exposition.MAX_SCRAPES)]
    try:
        await asyncio.sleep(0.1)
        # One more is closed as it comes.
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            await asyncio.to_thread(_get, port)
        for each in silent:
            each.close()
        for _ in range(100):
            try:
                assert (await asyncio.to_thread(_get, port))[0] == 200
                break
            except OSError:
                await asyncio.sleep(0.05)
        else:
            pytest.fail("no place came back")
    finally:
        for each in silent:
            each.close()


async def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^metrics\.port: cannot listen on 127\.0\.0\.1:{port} .*--metrics-port"
        ):
            Exposition(MetricsSettings(port=port), _registry())
    with pytest.raises(ConfigError, match=r"^metrics\.port"):
        Exposition(MetricsSettings(host="no-such-host.invalid", port=port), _registry())


async def test_without_a_port_nothing_listens():
    served = Exposition(MetricsSettings(), _registry())
    served.start()
    served.stop()
