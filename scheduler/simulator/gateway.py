"""A simulated gateway: what each request got, and the order that the contract promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..actions import Accepted, CancelDone, GatewayMessage, PoolUpdate, Refused, SequenceEnd, TokenBatch
from ..events import EndReason, Submission
from .text import run_alone


@dataclass
class Output:
    """One of a request's outputs."""

    tokens: list[int] = field(default_factory=list)
    # When each token came.
    times: list[float] = field(default_factory=list)
    ends: list[SequenceEnd] = field(default_factory=list)
    # Whether its gateway has said that it has all it wants.
    stopped: bool = False


@dataclass
class Call:
    """One request as its gateway sees it."""

    submission: Submission
    accepted: bool = False
    refused: str | None = None
    outputs: list[Output] = field(default_factory=list)
    sequence_ids: tuple[int, ...] = ()
    # Of its prompt, as they came; some may have come twice.
    prompt_logprobs: list[bytes] = field(default_factory=list)
    cancels_sent: int = 0
    # Since when its reader is behind, on the clock of the mesh; None: it is not.
    paused_at: float | None = None
    cancels_done: list[CancelDone] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The admission refuses what is less than one.
        self.outputs = [Output() for _ in range(max(1, self.submission.n))]
        for output, before in zip(self.outputs, self.submission.begun, strict=False):
            output.tokens += before.token_ids

    @property
    def tokens(self) -> list[int]:
        """Of the first output, as the two that follow."""
        return self.outputs[0].tokens

    @property
    def times(self) -> list[float]:
        return self.outputs[0].times

    @property
    def ends(self) -> list[SequenceEnd]:
        return self.outputs[0].ends

    @property
    def cancelled(self) -> bool:
        return any(done.found for done in self.cancels_done)

    @property
    def over(self) -> bool:
        """Whether its terminal message has come."""
        return self.refused is not None or self.cancelled or all(output.ends for output in self.outputs)

    def expected(self, index: int = 0) -> tuple[list[int], EndReason]:
        """What the small model says to output `index` when it is alone."""
        submission = self.submission
        seed = (submission.sampling.seed + index) % 2**64
        return run_alone(submission.prompt_token_ids, submission.max_tokens, submission.stop_token_ids, seed)


class VirtualGateway:
    """Keeps what came back and insists on the order the contract promises."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: dict[int, Call] = {}
        self.pools: PoolUpdate | None = None
        self.lost = False
        # Sequence -> its call, and which of the outputs it is.
        self._outputs: dict[int, tuple[Call, Output]] = {}

    def receive(self, message: GatewayMessage, now: float) -> None:
        """A message of the scheduler."""
        assert not self.lost, "a message to a gateway that is gone"
        if isinstance(message, PoolUpdate):
            self.pools = message
        elif isinstance(message, Accepted):
            call = self._opening(message.request_key)
            call.accepted = True
            call.sequence_ids = message.sequence_ids
            ended = [index for index, each in enumerate(call.submission.begun) if each.ended]
            live = [output for index, output in enumerate(call.outputs) if index not in ended]
            assert len(set(message.sequence_ids)) == len(live), "ids and outputs differ in number"
            for sequence_id, output in zip(message.sequence_ids, live, strict=True):
                self._outputs[sequence_id] = call, output
        elif isinstance(message, Refused):
            self._opening(message.request_key).refused = message.failure.reason
        elif isinstance(message, CancelDone):
            call = self.calls[message.request_key]
            assert not (message.found and call.over), "two terminal messages"
            assert message.found or call.over, "neither cancelled nor ended"
            call.cancels_done.append(message)
        else:
            assert isinstance(message, TokenBatch)
            for sequence_id, part in message.prompt_logprobs:
                self._live(sequence_id)
                call, _ = self._outputs[sequence_id]
                assert not any(output.tokens for output in call.outputs), "logprobs of a prompt behind a token"
                call.prompt_logprobs.append(part)
            for sequence_id, token in zip(message.sequence_ids, message.token_ids, strict=True):
                output = self._live(sequence_id)
                output.tokens.append(token)
                output.times.append(now)
            for end in message.ends:
                self._live(end.sequence_id).ends.append(end)

    def _opening(self, key: int) -> Call:
        call = self.calls[key]
        assert not call.accepted, "accepted twice"
        assert not call.over
        return call

    def _live(self, sequence_id: int) -> Output:
        call, output = self._outputs[sequence_id]
        assert not call.over, "a word after the end of the request"
        assert not output.ends, "a word after the end of the output"
        return output
