"""Clients of a gateway, and what becomes of their requests: the streams are real, the words are one character each."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.detokenizer import Detokenizer
from gateway.mesh_messages import Submission
from gateway.output import Output
from gateway.penalties import NO_PENALTIES
from gateway.stream import Delta, Stream
from scheduler.simulator.small import worker_info
from scheduler.simulator.text import run_alone

from .wired_link import standing_still

INFO = worker_info(block_size=2, num_blocks=12, max_num_seqs=4, max_num_batched_tokens=8)
PROMPT = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request."""

    max_tokens: int = 2
    n: int = 1
    stop_strings: tuple[str, ...] = ()
    # It reads only now and then, and so many tokens may wait for it; `deaf`: it never does.
    unread: int | None = None
    deaf: bool = False


@dataclass(slots=True)
class Client:
    """One request as its client sees it."""

    ask: Ask
    key: int
    stream: Stream
    texts: list[str]
    # How it ended; set once.
    end: str | None = None
    # It was accepted when the scheduler was told to stop, and is to be served.
    owed: bool = False
    gone: bool = False


def piece(token_id: int) -> str:
    """The text of a token: one character."""
    return chr(0x4E00 + token_id)


def open_stream(ask: Ask) -> Stream:
    """For the answers to a request."""
    outputs = [
        Output(Detokenizer(piece), stop_strings=ask.stop_strings, stop_token_ids=frozenset()) for _ in range(ask.n)
    ]
    return Stream(outputs, max_tokens_held=1_000 if ask.unread is None else ask.unread, clock=standing_still)


def submission_of(ask: Ask, request_id: str) -> Submission:
    """What the gateway makes of it."""
    return Submission(
        tenant="",
        request_id=request_id,
        model=INFO.model,
        model_revision=INFO.model_revision,
        prompt_token_ids=list(PROMPT),
        max_tokens=ask.max_tokens,
        max_tokens_open=False,
        stop_token_ids=(),
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=0,
        penalties=NO_PENALTIES,
        num_logprobs=None,
        num_prompt_logprobs=None,
        deadline_ms=None,
        n=ask.n,
        traffic_class="",
        priority=0,
        prefix_salt=b"",
    )


def text_alone(ask: Ask, index: int) -> str:
    """The text of an output alone, up to the first stop string."""
    tokens, _ = run_alone(PROMPT, ask.max_tokens, (), index)
    text = "".join(map(piece, tokens))
    found = [text.index(stop) for stop in ask.stop_strings if stop in text]
    return text[: min(found)] if found else text


def end_of(stream: Stream) -> str | None:
    """A reason, or "finished"; None while it has none."""
    if stream.error is not None:
        return stream.error.reason
    return "finished" if stream.ended else None


def wants_to_read(stream: Stream) -> bool:
    """Whether there is something to read, or its client has read and not asked for more."""
    return stream.error is None and bool(stream._ready or stream.behind)


def read_all(client: Client) -> None:
    """All that is ready."""
    stream = client.stream
    while stream._ready:
        delta = _at_once(stream)
        client.texts[delta.output_index] += delta.text


def _at_once(stream: Stream) -> Delta:
    """A read that need not wait."""
    reading = stream.read()
    try:
        reading.send(None)
    except StopIteration as done:
        delta: Delta = done.value
        return delta
    raise AssertionError("a read waits though something is ready")
