"""The core in virtual time under everything that can happen at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import judge, prepared, settle
from simulated_worker import GREEDY, VOCAB, worker_info
from virtual_mesh import Call, VirtualGateway, VirtualMesh, submission

from scheduler.events import (
    EndReason,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_lives(data: st.DataObject) -> None:
    """Arrivals, cancels, deadlines, lost workers and gateways, tiny pools: the books balance after every event."""
    draw = data.draw
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    info = worker_info(
        block_size=block_size,
        num_blocks=-(-draw(st.integers(24, 120)) // block_size),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 24)),
        max_model_len=64,
    )
    infos = [info] * draw(st.integers(1, 2))
    mesh = VirtualMesh(
        infos,
        num_steps=draw(st.sampled_from([1, 2, 4, 8, 32])),
        max_prefill_tokens=draw(st.sampled_from([0, 1, 4])),
        seed=draw(st.integers(0, 2**16)),
        delay=draw(st.sampled_from([0.0, 0.002, 0.03])),
        wake=draw(st.sampled_from([0.0, 0.01])),
        batching=draw(st.booleans()),
        caching=draw(st.booleans()),
        eager_revoke=draw(st.booleans()),
        reserve_ahead=draw(st.booleans()),
    )
    gateways = [mesh.attach_gateway(number) for number in (1, 2)]
    for index in range(len(infos)):
        mesh.attach_worker(index)
    rng = mesh.rng
    shared = [rng.randrange(VOCAB) for _ in range(24)]
    calls: list[tuple[VirtualGateway, Call]] = []

    def arrive(key: int) -> None:
        gateway = rng.choice(gateways)
        if gateway.lost:
            return
        prompt = shared[: rng.randrange(24)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        wish = submission(
            key,
            prompt,
            rng.randrange(1, 24),
            stop_token_ids=(7,) if rng.random() < 0.5 else (),
            sampling=replace(GREEDY, seed=rng.randrange(3)),
            deadline_s=rng.random() * 0.5 if rng.random() < 0.2 else None,
            prefix_salt=rng.choice([b"", b"tenant"]),
        )
        call = mesh.submit(gateway, wish)
        calls.append((gateway, call))
        if rng.random() < 0.3:
            for _ in range(rng.choice([1, 1, 2])):
                mesh.at(mesh.now + rng.random() * 0.3, lambda: gateway.lost or mesh.cancel(gateway, call))

    def crash() -> None:
        if mesh.workers:
            victim = rng.choice(list(mesh.workers.values()))
            index = int(mesh.core._mesh.fleet.workers[victim.link].address.rpartition(":")[2]) - 1
            mesh.lose_worker(victim)
            if rng.random() < 0.8:
                mesh.at(mesh.now + rng.random() * rng.choice([0.1, 8.0]), lambda: mesh.attach_worker(index) and None)

    burst = draw(st.booleans())
    for key in range(draw(st.integers(1, 25))):
        mesh.at(rng.random() * (0.02 if burst else 1.0), lambda key=key: arrive(key))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 6))):
            mesh.at(rng.random(), crash)
    if draw(st.booleans()):
        mesh.at(rng.random(), lambda: mesh.lose_gateway(gateways[1]))
    settle(mesh)
    for gateway, call in calls:
        if not gateway.lost:
            judge(call)
    assert not any(requests for requests in mesh.core._mesh.gateways.values())
    assert mesh.core.view().requests_finished == sum(log.event == "request_finished" for log in mesh.logs)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_credits_hold_to_the_last_block(data: st.DataObject) -> None:
    """Slow messages, long plans, full pools: revoked plans run on, and nobody may run out of blocks."""
    draw = data.draw
    block_size = draw(st.sampled_from([1, 1, 2, 4]))
    info = worker_info(block_size=block_size, num_blocks=-(-draw(st.integers(40, 70)) // block_size))
    mesh, gateway = prepared(
        infos=[info],
        num_steps=draw(st.sampled_from([4, 8, 32])),
        seed=draw(st.integers(0, 2**16)),
        delay=draw(st.sampled_from([0.03, 0.1])),
        wake=draw(st.sampled_from([0.0, 0.05])),
        eager_revoke=draw(st.booleans()),
        reserve_ahead=draw(st.booleans()),
        caching=draw(st.booleans()),
    )
    rng = mesh.rng
    for key in range(draw(st.integers(2, 12))):
        length = rng.randrange(1, 20)
        wish = submission(key, [rng.randrange(3) for _ in range(length)], rng.randrange(1, 41 - length))
        mesh.at(rng.random() * 1.5, lambda wish=wish: mesh.submit(gateway, wish))
    settle(mesh)
    for call in gateway.calls.values():
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
