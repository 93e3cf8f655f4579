"""Who means another host is not answered where no key is asked."""

from __future__ import annotations

import pytest

from ..guarded_gateway import guarded_gateway
from .test_edge import answer_to

GET = b"GET %s HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("path", [b"/", b"/health", b"/console/mesh", b"/v1/models"])
async def test_a_page_cannot_reach_a_gateway_without_keys_by_its_own_name(gateway, http_port, path):
    answer = await answer_to(http_port, GET % (path, b"evil.example:%d" % http_port))
    assert answer.split(b" ")[1] == b"421"
    assert b"misdirected_request" in answer
    answer = await answer_to(http_port, GET % (path, b"localhost:%d" % http_port))
    assert answer.split(b" ")[1] == b"200"


async def test_where_keys_are_asked_any_name_will_do(scheduler, model_path, tmp_path, http_port):
    async with guarded_gateway(scheduler, model_path, tmp_path / "tenants.db", http_port=http_port):
        answer = await answer_to(http_port, GET % (b"/health", b"api.example"))
    assert answer.split(b" ")[1] == b"200"
