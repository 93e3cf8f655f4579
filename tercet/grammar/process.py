"""A service's grammar process: begun with the first question, asked without waiting, begun anew when it dies.

What it answers is told in a thread of its own. Knows neither requests nor sequences.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from ..model_source import ModelSource
from .frames import read_frame, write_frame
from .grammar import Grammar

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the process may take. A grammar that takes longer to compile, or a text to go on by a token, ends it. At
    most `places` are compiled at a time, each of another tenant."""

    max_bytes: int
    compile_seconds: float
    step_seconds: float = 1.0
    num_threads: int = 1
    places: int = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """`mask` is as `Follower.step` gives it, empty if there is a `problem`; `too_dear`: that is a limit, of which there
    may be more another time."""

    problem: str | None
    mask: bytes
    too_dear: bool = False


class GrammarProcess:
    """`on_answer(key, answer)` is called for each `open`, `step` and `probe`, and `on_loss(key, problem, owners)` if
    the process died: `key` is what it died of, None if that cannot be told, and `owners` are those at whose grammars it
    was: it is others' turn. All that was open is gone. Both from a thread of this one."""

    def __init__(
        self,
        model: tuple[ModelSource, int] | None,
        limits: Limits,
        on_answer: Callable[[int, Answer], None],
        on_loss: Callable[[int | None, str, frozenset[bytes]], None],
    ) -> None:
        """`model` has the files of a model and the size of its vocabulary; None: tokens are bytes."""
        self._model = model
        self._limits = limits
        self._on_answer = on_answer
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._to_write: queue.SimpleQueue[dict[str, Any] | None] | None = None  # None: no process
        self._process: subprocess.Popen[bytes] | None = None
        # Asked and not answered, in the order in which they were, and whose they are; steps are nobody's.
        self._waiting: dict[int, bytes] = {}
        # At what it is, whether or not anybody still wants that, and whose that is.
        self._begun: dict[int, bytes] = {}
        # Of several at which one died without a word nobody can be told; the next one is at one at a time.
        self._is_unsure = False
        self._is_closed = False

    def open(self, key: int, grammar: Grammar, end_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Begins a text, and asks what may come behind its first tokens."""
        self._ask("open", key, grammar, end_ids=list(end_ids), token_ids=list(token_ids))

    def step(self, key: int, token_id: int) -> None:
        """Goes on with a text by a token, and asks what may come next."""
        self._ask("step", key, token_id=token_id)

    def probe(self, key: int, grammar: Grammar) -> None:
        """Asks whether a grammar is one, and can be followed."""
        self._ask("probe", key, grammar)

    def drop(self, key: int) -> None:
        """Forgets a text; nothing is answered to what was asked of it."""
        with self._lock:
            self._waiting.pop(key, None)
            if self._to_write is not None:
                self._to_write.put({"do": "drop", "key": key})

    def close(self) -> None:
        """Ends the process. Nothing is answered any more, nor what is asked later."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            process, self._process = self._process, None
            if self._to_write is not None:
                self._to_write.put(None)
                self._to_write = None
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, what: str, key: int, grammar: Grammar | None = None, **fields: Any) -> None:
        if grammar is not None:
            fields |= {"syntax": grammar.syntax.value, "text": grammar.text, "salt": grammar.salt.hex()}
        with self._lock:
            if self._is_closed:
                return
            if self._to_write is None:
                self._begin()
            assert self._to_write is not None
            self._waiting.pop(key, None)
            self._waiting[key] = b"" if grammar is None else grammar.owner
            self._to_write.put({"do": what, "key": key, **fields})

    def _begin(self) -> None:
        model = None
        if self._model is not None:
            source, vocab_size = self._model
            model = {"format": source.format.value, "path": str(source.path), "vocab_size": vocab_size}
        limits = self._limits
        options = {
            "model": model,
            "max_bytes": limits.max_bytes,
            "compile_seconds": limits.compile_seconds,
            "step_seconds": limits.step_seconds,
            "num_threads": limits.num_threads,
            "places": 1 if self._is_unsure else limits.places,
        }
        # A session of its own: who stops the service by a key of the terminal does not mean this one. What it says is
        # not read: it may repeat grammars, and these are prompts.
        process = subprocess.Popen(
            [sys.executable, "-m", "tercet.grammar.child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        to_write: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        to_write.put(options)
        self._process, self._to_write = process, to_write
        for name, target in (("write", self._write), ("read", self._read)):
            threading.Thread(target=target, args=(process, to_write), name=f"grammar-{name}", daemon=True).start()

    def _write(self, process: subprocess.Popen[bytes], to_write: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        assert process.stdin is not None
        try:
            while (message := to_write.get()) is not None:
                write_frame(process.stdin, message)
            process.stdin.close()
        except OSError:
            pass  # whoever reads sees that it died

    def _read(self, process: subprocess.Popen[bytes], to_write: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        has_told, told_owner = False, b""
        problem = "it ended the process that follows grammars"
        while True:
            try:
                head, mask = read_frame(process.stdout)
            except EOFError:
                break
            if head["key"] is None:
                problem = head["problem"]
                continue
            with self._lock:
                if self._process is not process:
                    continue
                if "begun" in head:
                    self._begun[head["key"]] = self._waiting.get(head["key"], b"")
                    continue
                has_told = "last" in head
                told_owner = self._begun.pop(head["key"], b"")
                known = head["key"] in self._waiting
                if known:
                    del self._waiting[head["key"]]
            if known:
                self._on_answer(head["key"], Answer(head["problem"], mask, head["too_dear"]))
        code = process.wait()
        process.stdout.close()
        with self._lock:
            to_write.put(None)
            if self._process is not process:
                return
            self._process = self._to_write = None
            culprit = None if has_told else self._suspect()
            self._is_unsure = not has_told and len(self._begun) > 1
            owners = frozenset(filter(None, (told_owner if has_told else b"", *self._begun.values())))
            self._waiting.clear()
            self._begun.clear()
        log.error("grammar_process_lost", code=code, problem=problem)
        self._on_loss(culprit, problem, owners)

    def _suspect(self) -> int | None:
        """What a process died of that said nothing: what it was at, or was asked first."""
        if not self._begun:
            return next(iter(self._waiting), None)
        if len(self._begun) > 1:
            return None
        (key,) = self._begun
        return key if key in self._waiting else None
