"""How requests end that do not end by themselves: cancels, deadlines, slow readers, lost schedulers, shutdown."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2

from gateway import server
from tercet.errors import ConfigError
from tercet.mesh.v1 import sequence_pb2
from tercet.sections import GatewaySettings, MeshConfig, ModelSettings
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc


def failure_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, bool]:
    """Code, reason, and whether a time to retry is given, in details and trailer alike."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    retry = any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
    assert retry == ("grpc-retry-pushback-ms" in trailers)
    return error.code(), info.reason, retry


async def forever(sequence: Any) -> None:
    """Tokens without end, until cancelled."""
    while not sequence.cancelled.is_set():
        await sequence.tokens(5)
        await asyncio.sleep(0.001)


def logged(logs: Any, name: str, count: int) -> Any:
    """A check that an event was logged so often."""

    async def check() -> bool:
        return sum(event["event"] == name for event in logs) >= count

    return check


async def test_cancel_before_the_scheduler_has_answered(gateway: Any, scheduler: Any) -> None:
    scheduler.accept = False
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x", request_id="early"))
    await scheduler.submitted.wait()
    call.cancel()
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_CLIENT


@pytest.mark.parametrize("method", ["Generate", "GenerateOnce"])
async def test_cancel_before_the_first_token(gateway: Any, scheduler: Any, method: str) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    call = getattr(gateway.inference, method)(pb.GenerateRequest(prompt="x"))
    await scheduler.submitted.wait()
    call.cancel()
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_CLIENT


async def test_cancel_in_mid_stream_is_on_record(gateway: Any, scheduler: Any, until: Any) -> None:
    scheduler.play = forever
    with structlog.testing.capture_logs() as logs:
        call = gateway.inference.Generate(pb.GenerateRequest(prompt="x", request_id="mid"))
        for _ in range(5):
            await call.read()
        call.cancel()
        await scheduler.sequences[0].cancelled.wait()
        await until(logged(logs, "cancel_done", 1))
    events = {event["event"]: event for event in logs}
    assert events["cancel_sent"]["origin"] == "client"
    assert (events["cancel_done"]["found"], events["cancel_done"]["blocks_freed"]) == (True, 8)
    ended = events["request_ended"]
    assert (ended["request_id"], ended["outcome"], ended["reason"]) == ("mid", "cancelled", "client")
    assert ended["completion_tokens"] >= 4
    assert not {"prompt", "text"} & set(ended)


async def test_closing_the_channel_cancels(gateway: Any, scheduler: Any) -> None:
    scheduler.play = forever
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}")
    call = inference_pb2_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    await channel.close()
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_CLIENT


async def test_deadline_goes_down(gateway: Any, scheduler: Any, until_late: Any) -> None:
    scheduler.play = forever
    status, timeout_s = await until_late(
        lambda timeout_s: gateway.inference.Generate(pb.GenerateRequest(prompt="x"), timeout=timeout_s)
    )
    assert status is grpc.StatusCode.DEADLINE_EXCEEDED
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_DEADLINE
    assert 0 < scheduler.sequences[0].submit.deadline_ms <= 1000 * timeout_s + 100


SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]


async def test_a_slow_reader_is_paused_and_gets_every_token(
    scheduler: Any, make_gateway: Any, stop_gateway: Any
) -> None:
    gateway = await make_gateway(scheduler.port, max_stream_tokens=64)
    await gateway.until_ready()
    slow_channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}", options=SMALL_WINDOW)
    sent = 0

    async def play(sequence: Any) -> None:
        """As a scheduler does: a few more tokens come after the Pause."""
        nonlocal sent
        while not sequence.paused.is_set():
            await sequence.tokens(*[5] * 32)
            sent += 32
            await asyncio.sleep(0.004)
        await sequence.tokens(*[5] * 40)
        stalled.set()
        await sequence.unpaused.wait()
        await sequence.tokens(*[5] * 32)
        await sequence.end(sequence_pb2.END_REASON_LENGTH)
        sent += 72

    stalled = asyncio.Event()
    scheduler.play = play
    call = inference_pb2_grpc.InferenceStub(slow_channel).Generate(pb.GenerateRequest(prompt="x"))
    assert (await call.read()).HasField("accepted")
    await stalled.wait()
    # It disturbs nobody.
    play_on, scheduler.play = scheduler.play, scheduler.echo
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"
    scheduler.play = play_on
    received = []
    while (event := await call.read()) is not grpc.aio.EOF:
        received.append(event)
    assert received[-1].HasField("finished")
    assert sum(len(event.delta.token_ids) for event in received) == sent
    assert scheduler.sequences[0].pauses == [True, False]
    assert scheduler.sequences[0].cancel_reason is None
    await slow_channel.close()
    await stop_gateway(gateway)


async def test_a_slow_reader_whom_still_more_is_sent_is_cut_off_and_others_go_on(
    scheduler: Any, make_gateway: Any, stop_gateway: Any, model: Any
) -> None:
    gateway = await make_gateway(scheduler.port, max_stream_tokens=64)
    await gateway.until_ready()
    slow_channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}", options=SMALL_WINDOW)

    async def flood(sequence: Any) -> None:
        while not sequence.cancelled.is_set():
            for _ in range(32):
                await sequence.tokens(5)
            await asyncio.sleep(0.002)

    scheduler.play = flood
    call = inference_pb2_grpc.InferenceStub(slow_channel).Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_SLOW_CONSUMER
    scheduler.play = scheduler.echo
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"
    # What was sent before can still be read; then comes the reason.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
    assert failure_of(caught.value)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
    await slow_channel.close()
    await stop_gateway(gateway)


async def test_reader_that_has_stopped_is_cut_off_by_time(scheduler: Any, make_gateway: Any, stop_gateway: Any) -> None:
    gateway = await make_gateway(scheduler.port, max_stream_tokens=10**9, stream_stall_seconds=0.2)
    await gateway.until_ready()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}", options=SMALL_WINDOW)

    async def play(sequence: Any) -> None:
        while not sequence.cancelled.is_set():
            for _ in range(32):
                await sequence.tokens(*[5] * 64)
            await asyncio.sleep(0.002)

    scheduler.play = play
    call = inference_pb2_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_SLOW_CONSUMER
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in _rest(call):
            pass
    assert failure_of(caught.value)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
    await channel.close()
    await stop_gateway(gateway)


async def test_scheduler_lost_in_mid_stream_and_found_again(gateway: Any, scheduler: Any, until: Any) -> None:
    scheduler.play = forever
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    once = asyncio.ensure_future(gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="y")))
    await call.read()

    async def both_run() -> bool:
        return len(scheduler.sequences) == 2

    await until(both_run)
    await scheduler.stop()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in _rest(call):
            pass
    assert failure_of(caught.value) == (grpc.StatusCode.UNAVAILABLE, "SCHEDULER_LOST", True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await once
    assert failure_of(caught.value) == (grpc.StatusCode.UNAVAILABLE, "SCHEDULER_LOST", True)
    # While it is away, a refusal comes at once.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="z"))
    assert failure_of(caught.value) == (grpc.StatusCode.UNAVAILABLE, "SCHEDULER_LOST", True)
    scheduler.epoch += 1
    scheduler.play = scheduler.echo
    await scheduler.start()
    await gateway.until_ready()
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"


async def _rest(call: Any) -> Any:
    while (event := await call.read()) is not grpc.aio.EOF:
        yield event
    raise grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )


async def test_a_scheduler_whose_clock_was_put_back_is_obeyed(gateway: Any, scheduler: Any) -> None:
    await scheduler.stop()
    await gateway.until_ready(False)
    scheduler.epoch = 0
    with structlog.testing.capture_logs() as logs:
        await scheduler.start()
        await gateway.until_ready()
    behind = [line for line in logs if line["event"] == "scheduler_clock_behind"]
    assert [(line["epoch"], line["former_epoch"]) for line in behind] == [(0, 1)]
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"


async def test_starts_without_a_scheduler(make_gateway: Any, stop_gateway: Any, model: Any) -> None:
    gateway = await make_gateway(1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x"))
    assert failure_of(caught.value) == (grpc.StatusCode.UNAVAILABLE, "SCHEDULER_LOST", True)
    tokens = await gateway.inference.Tokenize(pb.TokenizeRequest(prompt="hello"))
    assert list(tokens.token_ids) == model.tokenizer.encode("hello", add_bos=False)
    await stop_gateway(gateway)


async def test_wrong_revision_is_refused(gateway: Any, scheduler: Any) -> None:
    scheduler.revision = "other"
    await scheduler.send_pools()
    await gateway.until_ready(False)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x"))
    assert failure_of(caught.value) == (grpc.StatusCode.FAILED_PRECONDITION, "REVISION_MISMATCH", False)


async def test_bound_of_concurrent_requests(scheduler: Any, make_gateway: Any, stop_gateway: Any) -> None:
    gateway = await make_gateway(scheduler.port, max_concurrent_requests=1)
    await gateway.until_ready()
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="y"))
    assert failure_of(caught.value) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", True)
    call.cancel()
    await stop_gateway(gateway)


async def test_shutdown_lets_running_requests_finish(
    scheduler: Any, make_gateway: Any, stop_gateway: Any, model: Any
) -> None:
    gateway = await make_gateway(scheduler.port, drain_seconds=30.0)
    await gateway.until_ready()
    go_on = asyncio.Event()

    async def play(sequence: Any) -> None:
        await sequence.tokens(*model.tokenizer.encode("hel", add_bos=False))
        await go_on.wait()
        await sequence.tokens(*model.tokenizer.encode("lo", add_bos=False))
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    gateway.stopping.set()
    found = None
    while found is None or found[1] != "DRAINING":
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt=""))
        found = failure_of(caught.value)
    assert found == (grpc.StatusCode.UNAVAILABLE, "DRAINING", True)
    go_on.set()
    kinds = []
    while (event := await call.read()) is not grpc.aio.EOF:
        kinds.append(event.WhichOneof("event"))
    assert kinds[-1] == "finished"
    await stop_gateway(gateway)


@pytest.mark.parametrize("begun", [True, False])
async def test_shutdown_ends_what_takes_too_long(
    scheduler: Any, make_gateway: Any, stop_gateway: Any, begun: bool
) -> None:
    """Only what has not begun may be asked for again."""
    gateway = await make_gateway(scheduler.port, drain_seconds=0.05)
    await gateway.until_ready()

    async def silent(sequence: Any) -> None:
        await sequence.cancelled.wait()

    scheduler.play = forever if begun else silent
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    if begun:
        await call.read()
    gateway.stopping.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in _rest(call):
            pass
    assert failure_of(caught.value) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", not begun)
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_SHUTDOWN
    await stop_gateway(gateway)


async def test_port_in_use_names_the_setting(gateway: Any, model_path: Any) -> None:
    config = MeshConfig(model=ModelSettings(model=str(model_path)), gateway=GatewaySettings(port=gateway.port))
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        await server.run(config, asyncio.Event())


async def test_every_cancelled_request_is_closed_once(gateway: Any, scheduler: Any, until: Any) -> None:
    scheduler.play = forever
    with structlog.testing.capture_logs() as logs:
        for num_read in (0, 7, 20):
            calls = [gateway.inference.Generate(pb.GenerateRequest(prompt="x")) for _ in range(20)]
            await asyncio.gather(*(call.read() for call in calls[:num_read]))
            for call in calls:
                call.cancel()
        # Requests that were cancelled before they arrived have no sequence; those that arrived are all heard of.
        scheduler.play = scheduler.echo
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello", request_id="last"))
        await until(logged(logs, "cancel_done", len(scheduler.sequences) - 1))
    cancelled = sorted(sequence.submit.request_id for sequence in scheduler.sequences[:-1])
    for name in ("cancel_sent", "cancel_done"):
        assert sorted(event["request_id"] for event in logs if event["event"] == name) == cancelled
    ended = [event["request_id"] for event in logs if event["event"] == "request_ended"]
    assert len(ended) == len(set(ended))
    assert set(ended) >= {*cancelled, "last"}


async def test_a_failure_while_the_first_event_is_written_reaches_the_client(gateway: Any, scheduler: Any) -> None:
    async def play(sequence: Any) -> None:
        failure = sequence_pb2.Failure(reason="WORKER_LOST", message="gone")
        await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

    scheduler.play = play
    for _ in range(20):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in _rest(gateway.inference.Generate(pb.GenerateRequest(prompt="x"))):
                pass
        assert failure_of(caught.value)[:2] == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")
