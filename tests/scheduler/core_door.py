"""A core that is asked, for tests of what it lets in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scheduler.actions import Accepted, Action, Log, Refused, ToGateway
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import GatewayAttached, Submitted, TenantsChanged, TimePassed, WorkerAttached
from scheduler.plan_log.checkpoint import Snapshot
from scheduler.policy import Policy
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import NamedPlan
from tercet import errors

GATEWAY, OTHER = 1, 2
# Sequences that the worker has room for.
SLOTS = 4


class Door:
    """A core with one gateway and one worker that never reports: what comes out is what admission says."""

    def __init__(self, max_requests: int = 1000, max_tokens: int = 10**6, num_steps: int = 4, **settings: Any) -> None:
        settings.setdefault("admission_mode", AdmissionMode.OFF)
        self.core = Core(
            CoreSettings(("host:1",), Policy(num_steps, 0), QueueBounds(max_requests, max_tokens), **settings)
        )
        self.now = 0.0
        self.logs: list[Log] = []
        self._keys: Iterator[int] = iter(range(1000, 10**6))
        self.handle(GatewayAttached(GATEWAY, "one"))
        self.handle(WorkerAttached(1, "host:1", worker_info(max_num_seqs=SLOTS)))

    def handle(self, event: Any) -> list[Action]:
        actions = self.core.handle(event, self.now)
        self.logs += [action for action in actions if isinstance(action, Log)]
        assert not self.core.check()
        return actions

    def know(self, *plans: NamedPlan, revision: int = 1, gateway: int = GATEWAY) -> None:
        self.handle(TenantsChanged(gateway, revision, plans))

    def ask(
        self, prompt: int = 3, gateway: int = GATEWAY, key: int | None = None, **changes: Any
    ) -> Accepted | Refused:
        """The answer to a request with a prompt of so many tokens."""
        asked = submission(next(self._keys) if key is None else key, (1,) * prompt, **changes)
        actions = self.handle(Submitted(gateway, asked))
        (answer,) = [
            action.message
            for action in actions
            if isinstance(action, ToGateway) and isinstance(action.message, (Accepted, Refused))
        ]
        return answer

    def refusal(self, prompt: int = 3, **changes: Any) -> errors.RequestError:
        """What refuses it, which leaves the state as it was but for when the next one is told to come."""
        # What comes with the time comes without it, too.
        self.handle(TimePassed())
        before = state_of(self.core)
        mesh = self.core._mesh
        expected_at = {key: pace.told.expected_at for key, pace in mesh.paces.items()}
        expected_at |= {key: usage.told.expected_at for key, usage in mesh.tenants.usage.items()}
        answer = self.ask(prompt, **changes)
        assert isinstance(answer, Refused)
        for key, pace in mesh.paces.items():
            pace.told.expected_at = expected_at[key]
        for key, usage in mesh.tenants.usage.items():
            usage.told.expected_at = expected_at[key]
        assert state_of(self.core) == before
        assert self.logs[-1].event == "request_refused"
        assert self.logs[-1].fields["reason"] == answer.failure.reason
        return answer.failure

    def accept(self, prompt: int = 3, **changes: Any) -> Accepted:
        answer = self.ask(prompt, **changes)
        assert isinstance(answer, Accepted), answer
        return answer


def state_of(core: Core) -> list[dict[str, Any]]:
    """All that a core knows."""
    return list(Snapshot(core).encoded())


def full(door: Door) -> None:
    """Who comes now waits."""
    for _ in range(SLOTS):
        door.accept()
