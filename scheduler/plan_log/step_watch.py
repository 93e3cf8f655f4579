"""The steps of a plan log's workers: how long each took, and what it computed."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from ..events import StepReported


class StepNote(NamedTuple):
    """One step. `chunks` are tokens of prompts, or of what is computed again, by sequence; `ids` got a token."""

    at: float
    seconds: float
    link: int
    worker: str
    ids: Set[int]
    chunks: Mapping[int, int]

    @property
    def prompt_tokens(self) -> int:
        return sum(self.chunks.values())

    @property
    def tokens(self) -> int:
        """All that it computed: the first token comes with the end of its prompt."""
        return self.prompt_tokens + sum(sequence_id not in self.chunks for sequence_id in self.ids)

    def tokens_of(self, sequence_id: int) -> int:
        return self.chunks.get(sequence_id) or int(sequence_id in self.ids)


class StepWatch:
    """Makes notes of reports, which say of prompts only how far they are."""

    def __init__(self) -> None:
        # By link and sequence: tokens in the KV cache.
        self._computed: dict[int, dict[int, int]] = {}
        # Steps that follow each other share their ids.
        self._ids: tuple[tuple[int, ...], frozenset[int]] = (), frozenset()

    def note(self, event: StepReported, worker: str, moment: float) -> StepNote:
        """The report came at that moment."""
        computed = self._computed.setdefault(event.link, {})
        chunks = {}
        for each in event.prefills:
            chunks[each.sequence_id] = max(
                0, each.num_computed - max(computed.get(each.sequence_id, 0), each.num_cached)
            )
            computed[each.sequence_id] = each.num_computed
        if event.sequence_ids is not self._ids[0]:
            self._ids = event.sequence_ids, frozenset(event.sequence_ids)
        return StepNote(moment, event.step_us / 1e6, event.link, worker, self._ids[1], chunks)

    def forget(self, link: int, sequence_id: int) -> None:
        """It is not there any more: if it comes back, it is computed again."""
        self._computed.get(link, {}).pop(sequence_id, None)
