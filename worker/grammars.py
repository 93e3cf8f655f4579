"""What sequences may go on with where their texts have to keep to grammars: masks over the vocabulary.

They come from a process of its own (tercet/grammar), a little after the token that they depend on. A sequence whose
mask is not there takes part in no step, and nobody waits for it. Knows neither plans nor steps.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import structlog

from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import Grammar
from tercet.grammar.process import Answer

from .messages import Failure, Structure

log = structlog.get_logger()

# So long a step waits for masks that are on their way, in seconds: mostly they take a tenth of a millisecond.
PATIENCE_S = 0.01
# The gateway knows where its client said so.
FIELD = "grammar"
# Processes that seem to have died of one text before it is given up.
_MAX_LOSSES = 2


class Process(Protocol):
    """See tercet.grammar.process.GrammarProcess."""

    def open(self, key: int, grammar: Grammar, end_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Begins a text, and asks what may come behind its first tokens."""

    def step(self, key: int, token_id: int) -> None:
        """Goes on with a text by a token, and asks what may come next."""

    def drop(self, key: int) -> None:
        """Forgets a text."""

    def close(self) -> None:
        """Ends it."""


MakeProcess = Callable[[Callable[[int, Answer], None], Callable[[int | None, str, frozenset[bytes]], None]], Process]


class Constraint:
    """One sequence's text and its grammar. Used by the executor's thread, but for what `Grammars` is told."""

    __slots__ = (
        "_begun", "_end_ids", "_grammar", "_grammars", "_token_ids", "is_late", "key", "mask", "num_losses", "problem",
    )  # fmt: skip

    def __init__(self, grammars: Grammars, key: int, structure: Structure, token_ids: Sequence[int]) -> None:
        """`token_ids` are the sequence's."""
        self._grammars = grammars
        self._grammar = structure.grammar
        self._end_ids = structure.end_ids
        self._token_ids = list(token_ids[structure.prompt_tokens :])  # the text so far
        self._begun = False
        self.key = key
        # A bit for each token that may come next, int32 [V / 32 rounded up]; None: it is on its way.
        self.mask: npt.NDArray[np.int32] | None = None
        self.problem: Failure | None = None
        self.is_late = False
        self.num_losses = 0

    @property
    def owner(self) -> bytes:
        """Whose grammar it is."""
        return self._grammar.owner

    @property
    def ready(self) -> bool:
        """Whether a token can be chosen now."""
        return self.mask is not None

    def begin(self) -> None:
        """Asks for what may come next."""
        self._begun = True
        self._grammars.ask(self)

    def advance(self, token_id: int) -> None:
        """Asks for what may come behind one more token."""
        self._token_ids.append(token_id)
        self.mask = None
        if self._begun:
            self._grammars.ask(self, token_id)
        else:
            self.begin()

    def ask(self, process: Process, token_id: int | None = None) -> None:
        """Asks a process, which knows the text before `token_id` if that is given."""
        if token_id is None:
            process.open(self.key, self._grammar, self._end_ids, self._token_ids)
        else:
            process.step(self.key, token_id)

    def close(self) -> None:
        """The sequence goes."""
        self._grammars.forget(self)


class Grammars:
    """The constraints of all sequences of a worker. `on_late` is called, from another thread, when a mask has come for
    which a step did not wait any more."""

    def __init__(self, make: MakeProcess) -> None:
        self._process = make(self._answered, self._lost)
        self._keys = itertools.count(1)
        self._changed = threading.Condition()
        self._live: dict[int, Constraint] = {}
        self._pending: dict[int, Constraint] = {}
        self._failed: list[Constraint] = []
        self.on_late: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._live)

    def new(self, structure: Structure, token_ids: Sequence[int]) -> Constraint:
        """That of a sequence with these tokens."""
        return Constraint(self, next(self._keys), structure, token_ids)

    def ask(self, constraint: Constraint, token_id: int | None = None) -> None:
        """For constraints."""
        with self._changed:
            self._live[constraint.key] = self._pending[constraint.key] = constraint
            constraint.ask(self._process, token_id)

    def forget(self, constraint: Constraint) -> None:
        """For constraints."""
        with self._changed:
            if self._live.pop(constraint.key, None) is not None:
                self._pending.pop(constraint.key, None)
                self._process.drop(constraint.key)

    def settle(self) -> bool:
        """Waits a little for masks that are on their way. Whether some are not there, or a problem is, so that
        somebody has to look."""
        with self._changed:
            if self._pending:
                self._changed.wait_for(lambda: all(each.is_late for each in self._pending.values()), PATIENCE_S)
                for constraint in self._pending.values():
                    constraint.is_late = True
            return bool(self._pending or self._failed)

    @property
    def has_pending(self) -> bool:
        """Whether masks are on their way."""
        return bool(self._pending)

    def take_failed(self) -> list[Constraint]:
        """Constraints with problems, each once."""
        with self._changed:
            failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """Ends the process."""
        self._process.close()

    def _answered(self, key: int, answer: Answer) -> None:
        with self._changed:
            constraint = self._pending.pop(key, None)
            if constraint is None:
                return
            if answer.problem is None:
                constraint.mask = np.frombuffer(answer.mask, np.int32)
            else:
                self._fail(constraint, answer.problem)
            self._changed.notify_all()
            was_late, constraint.is_late = constraint.is_late, False
        if was_late:
            self.on_late()

    def _lost(self, culprit: int | None, problem: str, owners: frozenset[bytes]) -> None:
        """All others are begun anew, those of `owners` last: what they may go on with depends on their tokens alone."""
        with self._changed:
            suspect = None if culprit is None else self._pending.get(culprit)
            if suspect is not None:
                suspect.num_losses += 1
                # It may have been something else, once.
                if suspect.num_losses == _MAX_LOSSES:
                    del self._pending[suspect.key]
                    self._fail(suspect, problem)
            for constraint in sorted(self._live.values(), key=lambda each: each.owner in owners):
                if constraint.problem is None:
                    constraint.ask(self._process)
            self._changed.notify_all()
        self.on_late()

    def _fail(self, constraint: Constraint, problem: str) -> None:
        log.info("grammar_failed")
        message = f"the text cannot keep to its structure: {problem}"
        constraint.problem = Failure(InvalidFieldError.reason, message, {"field": FIELD})
        self._failed.append(constraint)
