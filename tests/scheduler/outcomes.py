"""What a finished run must look like, and a mesh to run."""

from __future__ import annotations

from collections.abc import Container

from scheduler.actions import Plan, Release, ReleaseCause
from scheduler.events import EndReason, Submission, WorkerInfo
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh


def settle(mesh: VirtualMesh) -> None:
    """Everything has ended and nothing is left anywhere."""
    mesh.run()
    assert mesh.core.idle
    for worker in mesh.workers.values():
        assert worker.empty
        assert not worker.leaders
        assert worker.pool.counts.used == 0


def judge(call: Call, *, failures: Container[str] = (), refusals: Container[str] = ()) -> None:
    """Exactly one terminal, every cancel answered, and for each output the text that it would get alone.

    Every end has a reason that the story gives: nothing fails, and no request is refused, for another one than those
    named. What comes with a deadline may miss it.
    """
    assert call.over
    assert len(call.cancels_done) == call.cancels_sent
    assert call.refused is None or call.refused in refusals, call.refused
    for index, output in enumerate(call.outputs):
        tokens, reason = call.expected(index)
        assert output.tokens == tokens[: len(output.tokens)]
        if not output.ends:
            assert call.cancelled or call.refused, "an output without an end"
            continue
        (end,) = output.ends
        if end.reason in (EndReason.STOP, EndReason.LENGTH):
            assert output.tokens == tokens
            assert end.reason is reason
            assert end.failure is None
        elif end.failure is None:
            assert end.reason is EndReason.CANCELLED
            assert output.stopped, "ended without a reason"
        elif end.failure.reason == "DEADLINE_PASSED":
            assert end.reason is EndReason.CANCELLED
            assert call.submission.deadline_s is not None
        else:
            assert end.failure.reason in failures, end.failure


def refusals_for(asked: Submission, info: WorkerInfo) -> frozenset[str]:
    """Why workers of that size can never run the request; nothing if they can."""
    length = len(asked.prompt_token_ids) + asked.max_tokens
    alone = -(-length // info.block_size)
    forked = -(-min(len(asked.prompt_token_ids) + 1, length) // info.block_size) + asked.n - 1
    if asked.n > min(info.max_num_seqs, info.max_num_batched_tokens):
        return frozenset({"INVALID_FIELD"})
    return frozenset({"KV_NEVER_FITS"} if max(alone, forked) > info.num_blocks else ())


def prepared(**options: object) -> tuple[VirtualMesh, VirtualGateway]:
    """A mesh with one gateway and one worker."""
    mesh = VirtualMesh(**options)  # type: ignore[arg-type]
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    return mesh, gateway


def plans(mesh: VirtualMesh) -> list[Plan]:
    return [action.command for action in mesh.sent if isinstance(action.command, Plan)]


def releases(mesh: VirtualMesh, cause: ReleaseCause) -> list[Release]:
    found = [action.command for action in mesh.sent if isinstance(action.command, Release)]
    return [release for release in found if release.cause is cause]
