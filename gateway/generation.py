"""The life of one request in the gateway: tokenized, submitted, read, ended, logged."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from tercet.errors import DeadlineError, RequestCancelledError, RequestError, SlowConsumerError
from tercet.ledger.row import Outcome, Row
from tercet.refusal_lines import RefusalLines
from tercet.sections import GatewaySettings
from tercet.tracing.context import TraceContext
from tercet.tracing.tracer import Tracer

from .admission import Admission
from .answer_size import AnswerSize, too_large
from .books import Books, Ending, Entry
from .caller import Caller
from .cancel import CancelOrigin, Cancels
from .end_line import end_line
from .grammar_check import GrammarCheck
from .mesh_messages import Pool, Submission
from .outcome import outcome_of_cancel, outcome_of_error, outcome_of_output
from .penalties import Penalties, check_choice
from .prefix_salt import prefix_salt
from .prompt_logprobs import PromptPart, check_prompt_logprobs
from .refusal_counts import RefusalKind
from .request_output import output_of
from .schedulers import Schedulers
from .sequence_end import Account
from .sizes import input_field, refuse_hopeless, resolve_max_tokens, surely_fits
from .stages import Stage, StageClock
from .stream import Delta, Stream
from .summary import Summary
from .tokenizing import Tokenizing
from .traces import begin_trace
from .validate import GenerationRequest

log = structlog.get_logger()
_refusals = RefusalLines(log, "requests_refused")

# After a stop string the client has its text; Finished waits this long for the mesh to say what became free.
ACCOUNT_WAIT_S = 1.0
# A cancel this close before the deadline, in seconds, is the deadline.
_DEADLINE_SLACK_S = 0.01


@dataclass(frozen=True, slots=True)
class Means:
    """What all requests of a gateway work with. `clock` gives seconds, `draw_seed` a seed if the client sent none."""

    settings: GatewaySettings
    link: Schedulers
    books: Books
    tokenizing: Tokenizing
    grammars: GrammarCheck
    clock: Callable[[], float]
    draw_seed: Callable[[], int]
    tracer: Tracer


class Generation:
    """One admitted request. Whoever has it must `close` it, however it ends; `on_close` is called then, once."""

    def __init__(
        self,
        means: Means,
        request: GenerationRequest,
        request_id: str,
        caller: Caller,
        deadline_at: float | None,
        entry: Entry,
        on_close: Callable[[Generation], None],
        parent: TraceContext | None = None,
    ) -> None:
        self.request_id = request_id
        self.caller = caller
        self.admission: Admission | None = None
        self.stream: Stream | None = None
        self.error: RequestError | None = None
        # What was handed to the client's connection.
        self.delivered_tokens = 0
        self._means = means
        self._request = request
        self._entry = entry
        self._on_close = on_close
        self._clock = means.clock
        self._cancels = Cancels(means.clock)
        self._parent = parent
        self._trace = begin_trace(means.tracer, parent, request)
        self._arrived_at = means.clock()
        self._stages = StageClock(means.clock, self._arrived_at)
        self._admitted_at: float | None = None
        self._deadline_at = deadline_at
        self._key: int | None = None
        self._prompt_tokens = 0
        # The whole output is on its way to the client.
        self._completed = False
        self._closed = False

    async def open(self, before_submit: Callable[[int], Awaitable[None]] | None = None) -> Admission:
        """Tokenizes, submits, and waits until the scheduler has admitted. Raises the RequestError that refuses.

        `before_submit` gets the tokens that the request may use at worst, and may refuse it.
        """
        request, model, link = self._request, self._request.model, self._means.link
        # Before any work: a mesh that cannot serve says so at once, or as soon as that is known.
        pool = await link.settled_pool(model.name, model.revision)
        self._raise_known(pool)
        plan = self.caller.plan
        self._stages.begin(Stage.TOKENIZE)
        _, ids = await self._means.tokenizing.encode(
            model, request.input, self.caller.tenant, lambda least: refuse_hopeless(request, least, pool, plan)
        )
        self._prompt_tokens = len(ids)
        self._stages.begin(Stage.PREPARE)
        max_tokens = resolve_max_tokens(request, len(ids), pool)
        num_prompt_logprobs = request.sampling.num_prompt_logprobs
        check_prompt_logprobs(num_prompt_logprobs, len(ids))
        ends = () if request.stop.ignore_eos else model.eos_token_ids
        penalties = await self._penalties()
        check_choice(penalties, max_tokens, {*ends, *request.stop.token_ids}, model.vocab_size)
        salt = prefix_salt(request.cache_salt, self.caller.salt_key)
        grammar = None if request.structure is None else dataclasses.replace(request.structure, salt=salt)
        if grammar is not None:
            await self._means.grammars.check(grammar, self.caller.tenant, request.structure_field)
        seed = self._means.draw_seed() if request.sampling.seed is None else request.sampling.seed
        self._raise_if_ended()
        if before_submit is not None:
            await before_submit(len(ids) + request.n * max_tokens)
            self._raise_if_ended()
        self.stream = Stream(
            (output_of(request, ids) for _ in range(request.n)),
            max_tokens_held=self._means.settings.max_stream_tokens,
            clock=self._clock,
            cancels=self._cancels,
            num_prompt_logprobs=0 if num_prompt_logprobs is None else len(ids) - 1,
            # The mesh knows tokens and grammars; the client, what it gave.
            fields={"prompt_token_ids": input_field(request), "grammar": request.structure_field},
        )
        self._stages.begin(Stage.ADMISSION)
        self._key = link.submit(
            Submission(
                tenant=self.caller.tenant,
                request_id=self.request_id,
                model=model.name,
                model_revision=model.revision,
                prompt_token_ids=ids,
                max_tokens=max_tokens,
                max_tokens_open=request.stop.max_tokens is None,
                stop_token_ids=tuple(dict.fromkeys((*ends, *request.stop.token_ids))),
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                top_k=request.sampling.top_k,
                min_p=request.sampling.min_p,
                seed=seed,
                penalties=penalties,
                num_logprobs=request.sampling.num_logprobs,
                num_prompt_logprobs=num_prompt_logprobs,
                deadline_ms=self._deadline_ms(),
                n=request.n,
                traffic_class=request.traffic_class,
                priority=request.priority,
                prefix_salt=salt,
                grammar=grammar,
                grammar_end_ids=model.eos_token_ids,
                trace=self._parent if self._trace is None else self._trace.context,
            ),
            self.stream,
        )
        position = await self.stream.wait_accepted()
        self._admitted_at = self._clock()
        self._stages.begin(Stage.WAITING)
        prompt = () if num_prompt_logprobs is None else tuple(ids)
        self.admission = Admission(self.request_id, model, position, seed, len(ids), self.stream.forecast_s, prompt)
        # Who is told that it was accepted is in the books, whatever becomes of this process.
        self._entry.open(len(ids), self.stream.targets)
        return self.admission

    async def read_prompt(self) -> PromptPart | None:
        """More of the prompt's logprobs, which come before the first delta; None when there are no others. Raises as
        `read`."""
        assert self.stream is not None
        return await self.stream.read_prompt()

    async def read_whole_prompt(self) -> list[PromptPart]:
        """All that `read_prompt` gives."""
        parts: list[PromptPart] = []
        while (part := await self.read_prompt()) is not None:
            parts.append(part)
        return parts

    async def read(self) -> Delta | None:
        """The next delta; None after the last. Raises the RequestError that ended the request."""
        assert self.stream is not None
        delta = await self.stream.read()
        if self._trace is not None and delta is not None:
            self._trace.hear(delta)
        return delta

    async def read_all(self, size: AnswerSize) -> tuple[list[PromptPart], list[Delta]]:
        """All of either, for an answer in one piece, of which there are `size` already. Raises AnswerTooLargeError if
        it would be too large for that, else as `read`."""
        parts, deltas = await self.read_whole_prompt(), list[Delta]()
        for part in parts:
            size.add_prompt(part)
        while (delta := await self.read()) is not None:
            size.add(delta)
            deltas.append(delta)
            if size.too_large:
                raise too_large(self._request)
        return parts, deltas

    @property
    def has_begun(self) -> bool:
        """Whether there are tokens of it."""
        return self.stream is not None and self.stream.num_tokens > 0

    async def finish(self) -> Summary:
        """How the request ended, once `read` gave None. Waits at most ACCOUNT_WAIT_S for what the mesh freed."""
        stream = self.stream
        assert stream is not None
        assert stream.finishes
        assert self._admitted_at is not None
        ended_at = self._clock()
        account: Account | None = None
        with contextlib.suppress(asyncio.TimeoutError):
            account = await asyncio.wait_for(stream.wait_account(), ACCOUNT_WAIT_S)
        # The output was complete before the wait for the account; that wait is not the client's time.
        summary = Summary(
            finishes=stream.finishes,
            account=account,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=stream.num_tokens,
            admission_s=self._admitted_at - self._arrived_at,
            first_token_s=(stream.first_token_at or ended_at) - self._arrived_at,
            total_s=ended_at - self._arrived_at,
        )
        self._completed = True
        return summary

    def end(self, error: RequestError, origin: CancelOrigin) -> bool:
        """Ends a running request from outside; its client gets `error`. False if it had ended."""
        if self.error is not None or (self.stream is not None and self.stream.ended):
            return False
        self.error = error
        self._cancels.ask(origin)
        if self.stream is not None:
            self.stream.fail(error)
        if self._key is not None:
            self._means.link.cancel(self._key, origin)
        return True

    def close(self, error: RequestError | None = None) -> None:
        """Gives everything back, once; `error` is what its client is told. A request that has not ended is cancelled:
        its client went away, or was too late."""
        if self._closed:
            return
        self._closed = True
        self.error = self.error or error
        stream, origin = self.stream, self._origin(error)
        running = stream is not None and not stream.ended
        if stream is not None and running:
            if self._key is not None:
                self._means.link.cancel(self._key, origin)
            stream.fail(error or RequestCancelledError("the client went away"))
        gone = running and error is None
        outcome, reason = outcome_of_cancel(origin) if gone else self._ending()
        if outcome is Outcome.REFUSED and self._key is None:
            # What the scheduler has refused it has counted.
            kind = RefusalKind(self.caller.tenant, self._request.traffic_class, reason)
            self._means.link.note_refusal(kind)
        if outcome in (Outcome.CANCELLED, Outcome.EXPIRED):
            # Also what was not submitted yet, or complete but not yet handed over.
            self._cancels.ask(origin)
        if self._key is None:
            self._cancels.answer(None, None)
        ending = Ending(
            self._arrived_at, self._clock(), self._prompt_tokens, self.delivered_tokens, self._cancels, self._stages
        )
        submitted = None if self._key is None else stream
        self._entry.close(outcome, reason, submitted, ending, lambda row: self._tell(row, ending, gone))
        self._on_close(self)

    def _origin(self, error: RequestError | None) -> CancelOrigin:
        """Why a request is cancelled that is closed before its end."""
        if isinstance(error, SlowConsumerError):
            return CancelOrigin.SLOW_CONSUMER
        late = self._deadline_at is not None and self._clock() >= self._deadline_at - _DEADLINE_SLACK_S
        return CancelOrigin.DEADLINE if late else CancelOrigin.CLIENT

    def _ending(self) -> tuple[Outcome, str]:
        """Outcome and reason of a request that its client did not leave while it ran."""
        stream = self.stream
        error = self.error or (stream.error if stream is not None else None)
        if error is not None:
            return outcome_of_error(error, admitted=self.admission is not None)
        finishes = stream.finishes if stream is not None else ()
        return outcome_of_output(finishes, handed_over=self._completed)

    def _tell(self, row: Row, ending: Ending, gone: bool) -> None:
        """The last word on it, once the mesh has said its own."""
        parent, trace = self._parent, self._trace
        if trace is not None:
            stream = None if self._key is None else self.stream
            trace.close(row, ending.stages, stream, ending.arrived_at, ending.ended_at)
        context = parent if trace is None else trace.context
        trace_id = None if context is None else context.trace_hex
        tell = _refusals.tell if row.outcome is Outcome.REFUSED else log.info
        tell("request_ended", **end_line(row, key_id=self.caller.key_id, client_gone=gone, trace_id=trace_id))

    async def _penalties(self) -> Penalties:
        """The request's, with its bad words in tokens."""
        request, tokenizing = self._request, self._means.tokenizing
        if not request.penalties.bad_words:
            return request.penalties
        bad = await tokenizing.bad_words(request.model, request.penalties.bad_words, self.caller.tenant)
        return dataclasses.replace(request.penalties, bad_ids=bad)

    def _raise_if_ended(self) -> None:
        if self.error is not None:
            raise self.error
        if self._deadline_at is not None and self._clock() >= self._deadline_at:
            raise DeadlineError("the deadline passed before the request was submitted")

    def _raise_known(self, pool: Pool) -> None:
        """Raises what the scheduler would say as well, before it costs a look at the prompt's tokens."""
        request, caller = self._request, self.caller
        known = self._means.link.known_refusal(caller.tenant, request.traffic_class, caller.plan)
        if known is None:
            return
        most = self._means.tokenizing.most_tokens(request.model, request.input)
        if most is not None and surely_fits(request, most, pool, caller.plan):
            raise known

    def _deadline_ms(self) -> int | None:
        if self._deadline_at is None:
            return None
        return max(1, int((self._deadline_at - self._clock()) * 1000))
