"""The gateway's link with all its requests, and the scheduler's core, joined by streams that a story can break.

Both ends are the real ones, and so are the codecs: what travels is bytes. Behind the core is a checked worker on a
stream that never breaks. Clients read at once, unless they do not read at all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.cancel import CancelOrigin
from scheduler.actions import Action, DropWorker, ToGateway, ToWorker, Unknown
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import (
    CancelReason,
    CancelReceived,
    DrainStarted,
    Event,
    GatewayAttached,
    GatewayLost,
    PauseReceived,
    SequenceStopped,
    Submitted,
    UnpauseReceived,
    WorkerAttached,
)
from scheduler.gateway_messages import message_to_proto, submission_from_proto
from scheduler.policy import Policy
from scheduler.simulator.worker import SimulatedWorker
from scheduler.wire import enum_value
from tercet import errors
from tercet.mesh.v1 import scheduler_pb2 as pb

from .clients import INFO, Ask, Client, end_of, open_stream, read_all, submission_of, text_alone, wants_to_read
from .explorer import Move
from .wired_link import WiredLink, standing_still


@dataclass(frozen=True, slots=True)
class Story:
    """What is asked, and what may happen at any moment, so many times in all."""

    asks: tuple[Ask, ...]
    # Clients that go away, while they wait for their first token or later.
    cancels: int = 0
    cuts: int = 0
    # Schedulers that die and start again.
    restarts: int = 0
    # Schedulers that are told to stop, do so when nobody is served any more, and start again.
    stops: int = 0
    # Schedulers that are told to stop, leave what runs to the next one, and start again.
    partings: int = 0
    # Looks of both at what the gateway takes for running.
    compares: int = 0
    # Messages that may be said again, and come twice.
    echoes: int = 0
    # Bugs: messages that are lost on a stream that goes on, and requests that the gateway forgets. Who has nothing else
    # to do compares until all is well.
    slips: int = 0
    lapses: int = 0
    # The gateway hands over what its scheduler cannot go on with.
    hands_over: bool = False


BUDGETS = ("cancels", "cuts", "restarts", "stops", "partings", "compares", "echoes", "slips", "lapses")
# What may be said again.
REPEATABLE = frozenset({"cancel", "stop_sequence", "pause", "unpause", "running", "cancel_done", "unknown", "pools"})
# What may get lost so that only a comparison finds it; of other messages the next one, or a wrong text, would tell.
SLIPPERY = frozenset({"submit", "cancel", "refused", "cancel_done"})
# Comparisons after which all must be well.
MOST_COMPARES = 4


@dataclass(slots=True)
class Wire:
    """One stream: bytes on their way. Each end gives it up in its own time, and a broken one carries nothing."""

    number: int
    down: deque[bytes] = field(default_factory=deque)
    up: deque[bytes] = field(default_factory=deque)
    broken: bool = False
    # Whether the scheduler knows it, and whether it has said goodbye on it.
    open: bool = False
    parted: bool = False


class GatewayWorld:
    """See Story."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.left = Counter({name: getattr(story, name) for name in BUDGETS})
        self.link = WiredLink(keeps=story.hands_over)
        self.clients: list[Client] = []
        self._asked = 0
        self._epoch = self._links = self._wires = 0
        # As the gateway has it, and those that the scheduler has and the gateway has left.
        self.wire: Wire | None = None
        self.left_behind: list[Wire] = []
        self.stopping = self.leaving = False
        # Comparisons since something went wrong.
        self.looks = 0
        self._boot()
        self._dial()
        while self._wire.down or self._wire.up:
            self.make(("down",) if self._wire.down else ("up",))

    # What the explorer asks.

    def moves(self) -> Sequence[Move]:
        return [*self._due(), *self._possible()]

    def make(self, move: Move) -> None:
        name, *arguments = move
        getattr(self, f"_{name}")(*arguments)
        self._carry()
        for client in self.clients:
            if client.ask.unread is None:
                read_all(client)

    @property
    def at_rest(self) -> bool:
        return not self._due()

    def check(self) -> None:
        problems = self.core.check()
        assert not problems, problems
        for client in self.clients:
            end = end_of(client.stream)
            assert client.end is None or end == client.end, f"ended twice: {client.end}, then {end}"
            client.end = end
            for index, text in enumerate(client.texts):
                assert text_alone(client.ask, index).startswith(text), "another text than alone"

    def check_rest(self) -> None:
        for client in self.clients:
            assert client.end is not None, "a request without an end"
            if client.end == "finished" and not client.ask.deaf:
                texts = [text_alone(client.ask, index) for index in range(client.ask.n)]
                assert client.texts == texts, "an end before the text is complete"
            else:
                assert client.end in self._endings(client), client.end
            assert not client.owed or client.gone or client.end == "finished", f"accepted, and not served: {client.end}"
        assert self.link.num_requests == 0, "the link knows a request that is over"
        assert self.core.idle, "a request without an end in the scheduler"
        assert list(self.core._mesh.gateways) == [self._wire.number], "a stream that is gone is known"
        assert self.worker.empty, "the worker has an orphan"
        assert self.worker.pool.counts.used == 0, "blocks are in use by nobody"

    # What happens by itself.

    def _due(self) -> list[Move]:
        due: list[Move] = []
        if self.wire is None:
            # A scheduler that leaves takes no more gateways.
            due += [] if self.leaving else [("dial",)]
        elif self.wire.broken:
            due.append(("notice",))
        else:
            due += [("up",)] if self.wire.up else []
            due += [("down",)] if self.wire.down else []
        due += [("hear_of_loss", wire.number) for wire in self._known_wires() if wire.broken]
        if self.link.waiting and self.link.up and not self.link.draining:
            due.append(("hand_on",))
        for index, client in enumerate(self.clients):
            if client.ask.deaf and client.stream.behind and not client.stream.ended:
                due.append(("give_up", index))
            elif client.ask.unread is not None and not client.ask.deaf and wants_to_read(client.stream):
                due.append(("read", index))
        if self.worker.busy or self.worker._plans or self.worker._mailbox:
            due.append(("step",))
        if self.stopping and (self.core.idle or self.leaving):
            known = self._known_wires()
            if not known:
                due.append(("start",))
            due += [("part", wire.number) for wire in known if not wire.parted and not wire.broken]
        if not due and self._differ:
            due.append(("look_again",))
        return due

    @property
    def _differ(self) -> bool:
        """Whether something went wrong that only a comparison finds."""
        wrong = any(getattr(self.story, name) > self.left[name] for name in ("slips", "lapses"))
        return wrong and self.looks < MOST_COMPARES and (self.link.num_requests > 0 or not self.core.idle)

    def _up(self) -> None:
        message = self._wire.up.popleft()
        if self.link.hear(message):
            break_wire(self._wire)

    def _down(self) -> None:
        self._hear(self._wire, pb.GatewayMessage.FromString(self._wire.down.popleft()))

    def _step(self) -> None:
        for event in self.worker.finish() if self.worker.busy else self.worker.begin():
            self._tell(event)

    def _dial(self) -> None:
        self._wires += 1
        self.wire = Wire(self._wires)
        self.link.send(pb.GatewayMessage(hello=pb.GatewayHello(gateway_id="gateway-1")))
        self._carry()

    def _notice(self) -> None:
        """The gateway's end."""
        wire, self.wire = self._wire, None
        if wire.open:
            self.left_behind.append(wire)
        self.link.lose()

    def _hear_of_loss(self, number: int) -> None:
        """The scheduler's end."""
        for wire in self._known_wires():
            if wire.number == number:
                wire.open = False
        self.left_behind = [wire for wire in self.left_behind if wire.open]
        self._tell(GatewayLost(number))

    def _part(self, number: int) -> None:
        """All has been said on that stream."""
        for wire in self._known_wires():
            if wire.number == number:
                wire.parted = True
                wire.up.append(pb.SchedulerMessage(goodbye=pb.Goodbye()).SerializeToString())

    def _hand_on(self) -> None:
        self.link.hand_on()

    def _look_again(self) -> None:
        self.looks += 1
        self.link.compare()

    def _start(self) -> None:
        self.stopping = self.leaving = False
        self._boot()

    # What is asked, and what breaks.

    def _possible(self) -> list[Move]:
        possible: list[Move] = []
        if self._asked < len(self.story.asks) and self.link.up:
            possible.append(("ask",))
        if self.left["cancels"]:
            possible += [("leave", index) for index, each in enumerate(self.clients) if not each.stream.ended]
        if self.left["cuts"] and self.wire is not None and not self.wire.broken:
            possible.append(("cut",))
        if self.left["compares"] and self.link.up:
            possible.append(("compare",))
        if self.left["lapses"]:
            possible += [("forget", index) for index, each in enumerate(self.clients) if self.link.knows(each.key)]
        if self.wire is not None and not self.wire.broken:
            for way, kind in (("up", self._next_up), ("down", self._next_down)):
                if self.left["echoes"] and kind in REPEATABLE:
                    possible.append(("twice", way))
                if self.left["slips"] and kind in SLIPPERY:
                    possible.append(("slip", way))
        if self.left["restarts"]:
            possible.append(("restart",))
        if self.left["stops"] and not self.stopping:
            possible.append(("stop",))
        if self.left["partings"] and not self.stopping:
            possible.append(("take_leave",))
        return possible

    def _ask(self) -> None:
        ask = self.story.asks[self._asked]
        self._asked += 1
        stream = open_stream(ask)
        key = self.link.submit(submission_of(ask, f"req-{self._asked}"), stream)
        self.clients.append(Client(ask, key, stream, [""] * ask.n))

    def _leave(self, index: int) -> None:
        """As the handler of a call that its client ends."""
        self.left["cancels"] -= 1
        client = self.clients[index]
        client.gone = True
        self.link.cancel(client.key, CancelOrigin.CLIENT)
        client.stream.fail(errors.RequestCancelledError("the client went away"))

    def _give_up(self, index: int) -> None:
        """As the handler of a call whose client has read nothing for too long."""
        client = self.clients[index]
        self.link.cancel(client.key, CancelOrigin.SLOW_CONSUMER)
        client.stream.fail(errors.SlowConsumerError("the client read nothing"))

    def _read(self, index: int) -> None:
        client = self.clients[index]
        read_all(client)
        # Who has handed over all that there was asks for more.
        client.stream._note_read()

    def _compare(self) -> None:
        self.left["compares"] -= 1
        self.link.compare()

    def _twice(self, way: str) -> None:
        self.left["echoes"] -= 1
        messages = self._wire.up if way == "up" else self._wire.down
        messages.appendleft(messages[0])

    def _slip(self, way: str) -> None:
        self.left["slips"] -= 1
        (self._wire.up if way == "up" else self._wire.down).popleft()

    def _forget(self, index: int) -> None:
        """The handler of its call ends it for the bug that this is."""
        self.left["lapses"] -= 1
        client = self.clients[index]
        self.link.forget(client.key)
        client.stream.fail(errors.EngineFaultError("the gateway has forgotten it"))

    def _cut(self) -> None:
        self.left["cuts"] -= 1
        break_wire(self._wire)

    def _restart(self) -> None:
        self.left["restarts"] -= 1
        for wire in self._known_wires():
            wire.open = False
        self.left_behind.clear()
        if self.wire is not None:
            break_wire(self.wire)
        self._boot()

    def _stop(self) -> None:
        self.left["stops"] -= 1
        self.stopping = True
        for client in self.clients:
            accepted = client.stream.queue_position is not None and not client.stream.ended
            client.owed = accepted and not self.story.cuts
        self._tell(DrainStarted())

    def _take_leave(self) -> None:
        self.left["partings"] -= 1
        self.stopping = self.leaving = True

    # The machinery.

    @property
    def _wire(self) -> Wire:
        assert self.wire is not None
        return self.wire

    @property
    def _next_up(self) -> str | None:
        return pb.SchedulerMessage.FromString(self._wire.up[0]).WhichOneof("message") if self._wire.up else None

    @property
    def _next_down(self) -> str | None:
        return pb.GatewayMessage.FromString(self._wire.down[0]).WhichOneof("message") if self._wire.down else None

    def _known_wires(self) -> list[Wire]:
        """Those that the scheduler knows."""
        return [wire for wire in (*self.left_behind, self.wire) if wire is not None and wire.open]

    def _boot(self) -> None:
        """A scheduler starts, and finds its worker at once."""
        self._epoch += 1
        self._links += 1
        policy, bounds = Policy(1, 0), QueueBounds(100, 10_000)
        self.core = Core(CoreSettings(("host:2",), policy, bounds, admission_mode=AdmissionMode.OFF))
        self.worker = SimulatedWorker(self._links, INFO)
        self._tell(WorkerAttached(self._links, "host:2", INFO))

    def _carry(self) -> None:
        """What the gateway has sent is on its way."""
        if self.wire is not None and not self.wire.broken:
            self.wire.down += self.link.take_sent()

    def _hear(self, wire: Wire, message: pb.GatewayMessage) -> None:
        kind = message.WhichOneof("message")
        assert (kind == "hello") is not wire.open, f"{kind} is not what a stream begins with, and nothing else"
        if kind == "hello":
            wire.open = True
            hello = pb.SchedulerMessage(hello=pb.SchedulerHello(epoch=self._epoch))
            wire.up.append(hello.SerializeToString())
            self._tell(GatewayAttached(wire.number, message.hello.gateway_id))
        elif kind == "submit":
            self._tell(Submitted(wire.number, submission_from_proto(message.submit)))
        elif kind == "cancel":
            reason = enum_value(CancelReason, message.cancel.reason)
            self._tell(CancelReceived(wire.number, message.cancel.request_key, reason))
        elif kind == "pause":
            self._tell(PauseReceived(wire.number, message.pause.request_key))
        elif kind == "unpause":
            self._tell(UnpauseReceived(wire.number, message.unpause.request_key))
        elif kind == "running":
            self._reconcile(wire, set(message.running.request_keys))
        else:
            assert kind == "stop_sequence", kind
            reason = enum_value(CancelReason, message.stop_sequence.reason)
            self._tell(SequenceStopped(wire.number, message.stop_sequence.sequence_id, reason))

    def _reconcile(self, wire: Wire, keys: set[int]) -> None:
        """As the loop does."""
        orphans, unknown = self.core.compare(wire.number, keys)
        assert not orphans or self.story.lapses > self.left["lapses"], "a comparison cancels what somebody waits for"
        for key in orphans:
            self._tell(CancelReceived(wire.number, key, CancelReason.ORPHAN))
        if unknown and not wire.broken:
            wire.up.append(message_to_proto(Unknown(tuple(unknown))).SerializeToString())

    def _tell(self, event: Event) -> None:
        actions = self.core.apply(event, standing_still())
        for action in actions + self.core.plan(standing_still()):
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, ToGateway):
            for wire in self._known_wires():
                if wire.number == action.gateway and not (wire.broken or wire.parted):
                    wire.up.append(message_to_proto(action.message).SerializeToString())
        elif isinstance(action, ToWorker):
            self.worker.receive(action.command)
        else:
            assert not isinstance(action, DropWorker), f"a worker is dropped: {action.why}"

    def _endings(self, client: Client) -> set[str]:
        endings = {"REQUEST_CANCELLED"} if client.gone else set()
        if client.ask.deaf:
            # It may be that all it asked for was on its way.
            endings |= {"SLOW_CONSUMER", "finished"}
        if self.story.stops:
            endings.add("DRAINING")
        if self.story.slips:
            endings.add("SCHEDULER_LOST")
        if self.story.lapses:
            endings.add("ENGINE_FAULT")
        if self.story.hands_over:
            return endings | {"finished"}
        return endings | ({"SCHEDULER_LOST"} if self.story.cuts or self.story.restarts or self.story.stops else set())


def break_wire(wire: Wire) -> None:
    """What was on its way is lost."""
    wire.broken = True
    wire.up.clear()
    wire.down.clear()
