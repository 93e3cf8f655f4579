"""A request's outputs on their way from the scheduler to its client: tokens in, deltas out, one end.

What waits for the client is joined into one delta an output when it next asks, so a client that keeps up gets every
token at once and one that does not gets fewer, larger deltas. Of one that is far behind, those who make the tokens are
told. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tercet.errors import EngineFaultError, RequestCancelledError, RequestError, SlowConsumerError
from tercet.ledger.row import Targets
from tercet.metrics.distribution import SHORT_SECONDS, Distribution

from .cancel import CancelOrigin, Cancels
from .output import Finish, Output, ToolCallDelta
from .prompt_logprobs import PromptLogprobs, PromptPart
from .sequence_end import Account, EndReason, SequenceEnd
from .stages import TokenTimes
from .token_logprobs import TokenLogprobs

# Tokens of each output that may be on their way when those who make them are told to pause: many times as many as the
# plans that a worker has at a time.
ON_THEIR_WAY = 512


@dataclass(frozen=True, slots=True)
class Delta:
    """What became final since the last one of an output. `token_offset` counts the output's tokens before it, `seq`
    the deltas of all outputs before it. `finish` is the output's end, if that is known with its last tokens."""

    seq: int
    output_index: int
    token_offset: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, if they were asked for
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish: Finish | None = None


class Stream:
    """The outputs of one request. The link calls `accept`, `push`, `end`, `close_account`; the client's handler the
    coroutines.

    It ends once: when every output has its `finish`, or with `error`. What comes after is dropped. When more than
    `max_tokens_held` tokens wait for the client, those of all outputs together, it is `behind`, and has caught up with
    half of them; `on_reader` is called at either moment. What is on its way by then is taken, too, and no more.
    """

    def __init__(
        self,
        outputs: Iterable[Output],
        *,
        max_tokens_held: int,
        clock: Callable[[], float],
        cancels: Cancels | None = None,
        num_prompt_logprobs: int = 0,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """`num_prompt_logprobs`: tokens of the prompt whose logprobs come before the first token. `fields`: what the
        client calls a field, by its name in errors of the mesh."""
        self._outputs = tuple(outputs)
        self._max_tokens_held = max_tokens_held
        self._hard_limit = max_tokens_held + ON_THEIR_WAY * len(self._outputs)
        self._clock = clock
        self._fields = fields or {}
        self.cancels = cancels or Cancels(clock)
        self._wake = asyncio.Event()
        self._prompt = PromptLogprobs(num_prompt_logprobs)
        # Outputs with something to read, in the order in which it became so.
        self._ready: deque[int] = deque()
        self._num_held = 0
        self._num_deltas = 0
        self._num_unfinished = len(self._outputs)
        self._accounts: dict[int, Account] = {}
        self.queue_position: int | None = None
        self.forecast_s: float | None = None
        self.targets = Targets("")
        self.first_token_at: float | None = None
        # When each output got its last token, None before its first; the longest time between two tokens of one.
        self._last_token_at: list[float | None] = [None] * len(self._outputs)
        self.largest_gap_s: float | None = None
        # All times between two tokens of one, and how often it was paused.
        self.gaps = Distribution(SHORT_SECONDS)
        self.num_pauses = 0
        self.error: RequestError | None = None
        # What the request held, and whether the last word on that has come: it may be that nobody knows.
        self.account: Account | None = None
        self.account_closed = False
        self._on_account: Callable[[], object] | None = None
        # Set while the handler waits in a place that only this call can get it out of.
        self.interrupt: Callable[[], object] | None = None
        # Whether the client is far behind, and who wants to know when that changes.
        self.behind = False
        self._caught_up_at = -math.inf
        self._waited_s = [0.0] * len(self._outputs)
        self.on_reader: Callable[[], object] | None = None
        # How often another scheduler took the request over.
        self.takeovers = 0

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def num_tokens(self) -> int:
        """Tokens taken, of all outputs."""
        return sum(output.num_tokens for output in self._outputs)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """How the outputs ended, by index; empty until all have ended well."""
        found = tuple(output.finish for output in self._outputs if output.finish is not None)
        return found if len(found) == len(self._outputs) else ()

    @property
    def ended(self) -> bool:
        """Whether no more tokens will be taken."""
        return self.error is not None or not self._num_unfinished

    @property
    def tpot_s(self) -> float | None:
        """Seconds from one token to the next on the mean, of the outputs side by side, without waits for the client;
        None before there are two."""
        steps = max(output.num_tokens for output in self._outputs) - 1
        last = max((at for at in self._last_token_at if at is not None), default=None)
        if steps < 1 or last is None or self.first_token_at is None:
            return None
        return (last - self.first_token_at - max(self._waited_s)) / steps

    @property
    def token_times(self) -> TokenTimes | None:
        """When its tokens came; None if there are none."""
        last = max((at for at in self._last_token_at if at is not None), default=None)
        if last is None or self.first_token_at is None:
            return None
        complete = not self._num_unfinished
        return TokenTimes(self.first_token_at, last, max(self._waited_s), complete, self.behind)

    def accept(self, queue_position: int, forecast_s: float | None = None, targets: Targets | None = None) -> None:
        """The scheduler admitted the request to a class that promises this, and expects the first token so many seconds
        later, if it can say."""
        self.queue_position = queue_position
        self.forecast_s = forecast_s
        if targets is not None:
            self.targets = targets
        self._wake.set()

    def push_prompt(self, part: PromptPart) -> None:
        """Takes more of the prompt's logprobs. Raises ValueError if they do not follow those before."""
        if self.error is None:
            self._prompt.push(part)
            self._wake.set()

    def push(self, index: int, token_id: int, logprobs: TokenLogprobs | None = None) -> CancelOrigin | None:
        """Takes the next token of an output, with its logprobs if all of them have some. Returns why work need not go
        on, if so: STOP_STRING is about this output alone, anything else about the request."""
        output = self._outputs[index]
        if self.error is not None or output.finish is not None:
            return None
        if not self._prompt.complete:
            raise ValueError("a token came before all of the prompt's logprobs")
        self._note_time(index)
        before = output.num_ready
        output.push(token_id, logprobs)
        self._note_ready(index, output, before)
        if output.finish is not None:
            self._note_finish()
            return CancelOrigin.STOP_STRING
        if self._num_held > self._max_tokens_held:
            if self._num_held > self._hard_limit:
                self.fail(
                    SlowConsumerError(
                        f"the client left more than {self._hard_limit} tokens unread, and still more came",
                        metadata={"max_stream_tokens": str(self._max_tokens_held)},
                    )
                )
                return CancelOrigin.SLOW_CONSUMER
            self._note_reader(behind=True)
        return None

    def end(self, index: int, end: SequenceEnd) -> None:
        """Takes the scheduler's last word on an output. After a stop string it only completes the account. An output
        that did not end well ends the request."""
        self._add_account(index, end.account)
        output = self._outputs[index]
        if self.error is not None or output.finish is not None:
            return
        if end.reason is EndReason.FAILED:
            self.fail(end.failure or EngineFaultError("the sequence failed for no stated reason"))
        elif end.reason is EndReason.CANCELLED:
            self.fail(end.failure or RequestCancelledError("the request was cancelled inside the mesh"))
        else:
            before = output.num_ready
            output.end(end.reason, end.stop_token_id)
            self._note_ready(index, output, before)
            self._note_finish()

    def close_account(self, account: Account | None) -> None:
        """What the whole request held, None if that will never be known; the first word counts."""
        if not self.account_closed:
            self.account, self.account_closed = account, True
            self._wake.set()
            # Not kept: it knows this stream.
            then, self._on_account = self._on_account, None
            if then is not None:
                then()

    def add_accounts(self, accounts: Mapping[int, Account]) -> None:
        """What outputs held of which no last word will come, by index."""
        for index, account in accounts.items():
            self._add_account(index, account)

    def when_accounted(self, then: Callable[[], object]) -> None:
        """Calls `then` once the last word on what the request held has come, now if it has. For one caller."""
        if self.account_closed:
            then()
        else:
            self._on_account = then

    def fail(self, error: RequestError) -> None:
        """Ends the stream with an error, unless it has ended. A handler that hangs in a write is interrupted."""
        if self.ended:
            return
        if (field := error.metadata.get("field", "")) in self._fields:
            error.metadata["field"] = self._fields[field]
        self.error = error
        self._wake.set()
        if self.interrupt is not None:
            self.interrupt()

    async def wait_accepted(self) -> int:
        """The queue position at admission. Raises the error that came instead."""
        while self.queue_position is None:
            if self.error is not None:
                raise self.error
            await self._wait()
        return self.queue_position

    async def read_prompt(self) -> PromptPart | None:
        """More of the prompt's logprobs; None when there are no others, at once if none were asked for. Raises as
        `read`."""
        while (part := self._prompt.take()) is None and not self._prompt.complete:
            if self.error is not None:
                raise self.error
            await self._wait()
        return part

    async def read(self) -> Delta | None:
        """All that is ready of one output, at least one token; None after the last. Raises the error that ended the
        stream. Who asks has handed over what it got the time before."""
        self._note_read()
        while not self._ready:
            if self.error is not None:
                raise self.error
            if not self._num_unfinished:
                return None
            await self._wait()
        if isinstance(self.error, SlowConsumerError):
            raise self.error
        index = self._ready.popleft()
        output = self._outputs[index]
        taken = output.take()
        self._num_held -= len(taken.token_ids)
        delta = Delta(
            self._num_deltas,
            index,
            taken.token_offset,
            taken.text,
            taken.token_ids,
            taken.logprobs,
            taken.tool_calls,
            output.finish,
        )
        self._num_deltas += 1
        return delta

    async def wait_account(self) -> Account | None:
        """What the request held, None if nobody knows. The caller bounds the wait."""
        while not self.account_closed:
            await self._wait()
        return self.account

    async def _wait(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    def _note_time(self, index: int) -> None:
        """An output gets a token."""
        now, last = self._clock(), self._last_token_at[index]
        if last is not None:
            if last < self._caught_up_at:
                # It has waited for the client; that is no gap of its tokens.
                self._waited_s[index] += self._caught_up_at - last
                last = self._caught_up_at
            gap_s = now - last
            self.gaps.add(gap_s)
            if self.largest_gap_s is None or gap_s > self.largest_gap_s:
                self.largest_gap_s = gap_s
        elif self.first_token_at is None:
            self.first_token_at = now
        self._last_token_at[index] = now

    def _note_read(self) -> None:
        if 2 * self._num_held <= self._max_tokens_held:
            self._note_reader(behind=False)

    def _note_reader(self, *, behind: bool) -> None:
        if behind is not self.behind:
            self.behind = behind
            self.num_pauses += behind
            if not behind:
                self._caught_up_at = self._clock()
            if self.on_reader is not None:
                self.on_reader()

    def _note_ready(self, index: int, output: Output, before: int) -> None:
        """An output that had `before` tokens ready may have more now."""
        self._num_held += output.num_ready - before
        if not before and output.num_ready:
            if not self._ready:
                self._wake.set()
            self._ready.append(index)

    def _note_finish(self) -> None:
        self._num_unfinished -= 1
        if not self._num_unfinished:
            self._wake.set()

    def _add_account(self, index: int, account: Account) -> None:
        self._accounts.setdefault(index, account)
        if len(self._accounts) < len(self._outputs):
            return
        # The prompt is the first output's work; the others begin where its prefill ends.
        first = self._accounts[0]
        self.close_account(
            Account(
                cached_tokens=first.cached_tokens,
                blocks_used=sum(each.blocks_used for each in self._accounts.values()),
                blocks_freed=sum(each.blocks_freed for each in self._accounts.values()),
                queue_s=first.queue_s,
                generated_tokens=sum(each.generated_tokens for each in self._accounts.values()),
                gpu_s=sum(each.gpu_s for each in self._accounts.values()),
                cpu_s=sum(each.cpu_s for each in self._accounts.values()),
            )
        )
