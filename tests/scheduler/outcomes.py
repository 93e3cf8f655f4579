"""What a finished run must look like, and a mesh to run."""

from __future__ import annotations

from scheduler.actions import Plan, Release, ReleaseCause
from scheduler.events import EndReason
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


def judge(call: Call) -> None:
    """Exactly one terminal, every cancel answered, and for each output the text that it would get alone."""
    assert call.over
    assert len(call.cancels_done) == call.cancels_sent
    for index, output in enumerate(call.outputs):
        tokens, reason = call.expected(index)
        assert output.tokens == tokens[: len(output.tokens)]
        if not output.ends:
            continue
        (end,) = output.ends
        if end.reason in (EndReason.STOP, EndReason.LENGTH):
            assert output.tokens == tokens
            assert end.reason is reason
            assert end.failure is None
        else:
            assert (end.failure is not None) or (output.stopped and end.reason is EndReason.CANCELLED)


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
