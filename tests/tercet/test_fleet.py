"""tercet fleet and tercet tokenize."""

from __future__ import annotations

import json

from command_line import run


def test_fleet_shows_workers_and_blocks(gateway):
    done = run("fleet", "--address", gateway.address)
    assert done.exit_code == 0
    assert "0 waiting, 0 running, 0 paused, 0 finished" in done.stdout
    assert "worker 127.0.0.1:1: fake on cpu, 0 sequences" in done.stdout
    assert "KV blocks: 0 used, 2 cached, 8 free of 10" in done.stdout
    state = json.loads(run("fleet", "--json", "--address", gateway.address).stdout)
    assert state["workers"][0]["blocks_total"] == 10


def test_fleet_shows_swaps_and_who_drains(gateway):
    shown = run("fleet", "--address", gateway.address).stdout
    assert "5 preemptions, 3 by swap" in shown
    assert "swapped" not in shown
    assert "draining" not in shown
    gateway.swap_blocks, gateway.draining = 8, True
    shown = run("fleet", "--address", gateway.address).stdout
    assert "swapped to host memory: 4 of 8 blocks" in shown
    assert "0 tokens in 0 steps, draining" in shown
    state = json.loads(run("fleet", "--json", "--address", gateway.address).stdout)
    assert (state["swaps"], state["workers"][0]["swap_blocks_used"], state["workers"][0]["draining"]) == (3, 4, True)


def test_fleet_shows_who_does_not_move(gateway):
    gateway.late, gateway.draining = True, True
    assert "0 tokens in 0 steps, draining, late" in run("fleet", "--address", gateway.address).stdout
    gateway.live, gateway.late, gateway.hung = False, False, True
    assert "worker 127.0.0.1:1: hung" in run("fleet", "--address", gateway.address).stdout
    gateway.hung = False
    assert "worker 127.0.0.1:1: not connected" in run("fleet", "--address", gateway.address).stdout


def test_tokenize_prints_ids(gateway):
    assert json.loads(run("tokenize", "ab cde", "--address", gateway.address).stdout) == [2, 3]
    assert json.loads(run("tokenize", "-", "--chat", "--address", gateway.address, stdin="abcd").stdout) == [4]
