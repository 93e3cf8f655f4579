"""What is done to logits before a token is chosen: biases, bans, penalties for what is in the text already.

cpp/include/tercet/penalties.h defines the result to the bit. Knows no sequences.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _core
from .bad_words import BadWords
from .dtypes import KERNELS_BUILT, check_one_device, on_kernels, stream_of

if KERNELS_BUILT:
    from .. import _kernels

_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_IN_PROMPT, _ENDS = 1, 2
_TOKEN = np.dtype([("token_id", np.int32), ("num_drawn", np.int32), ("bias", np.float32), ("kind", np.int32)])
_ROW = np.dtype(
    [
        ("repetition", np.float32), ("frequency", np.float32), ("presence", np.float32), ("min_tokens_left", np.int32),
        ("first_token", np.int32), ("num_tokens", np.int32), ("max_tokens", np.int32), ("mask", np.int32),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PenaltyRow:
    """What changes the logits of one row. Raises ValueError naming a value out of range."""

    repetition: float = 1.0  # finite and above 0, for tokens of the prompt and drawn ones; 1: off
    frequency: float = 0.0  # finite, for each time a token was drawn
    presence: float = 0.0  # finite, once for a token that was drawn
    bias: Mapping[int, float] = field(default_factory=dict)  # of a token; -inf: never chosen
    allowed_ids: Sequence[int] | None = None  # no other tokens may be chosen; None: all may
    min_tokens_left: int = 0  # to be drawn before one of `end_ids` may be
    end_ids: Sequence[int] = ()
    prompt_ids: Sequence[int] = ()
    drawn_ids: Sequence[int] = ()
    bad: Sequence[Sequence[int]] = ()  # what may not be drawn one behind the other

    def __post_init__(self) -> None:
        if not _SMALLEST <= self.repetition <= _LARGEST:
            raise ValueError("repetition: must be a float32 above 0")
        for name in ("frequency", "presence"):
            if not abs(getattr(self, name)) <= _LARGEST:
                raise ValueError(f"{name}: must be a float32")
        if not all(value == -math.inf or abs(value) <= _LARGEST for value in self.bias.values()):
            raise ValueError("bias: must be float32 or -inf")
        if self.min_tokens_left < 0:
            raise ValueError("min_tokens_left: must be at least 0")


class PenaltyCounts:
    """A PenaltyRow for a vocabulary, packed on the host, where it counts what is drawn from then on.

    Raises ValueError on ids out of range.
    """

    __slots__ = ("_bad", "_banned", "_bias", "_places", "_tokens", "mask", "num_tokens", "row")

    def __init__(self, row: PenaltyRow, vocab_size: int) -> None:
        self._tokens = _tokens_of(row, vocab_size)
        self._places = {token_id: place for place, token_id in enumerate(self._tokens["token_id"].tolist())}
        self.num_tokens = len(self._tokens)
        self.mask = None if row.allowed_ids is None else mask_of(row.allowed_ids, vocab_size)
        self.row = np.zeros(1, _ROW)
        for name in ("repetition", "frequency", "presence", "min_tokens_left"):
            self.row[name] = getattr(row, name)
        self._bias = row.bias
        self._bad = BadWords(row.bad)
        self._banned: set[int] = set()
        self._ban(row.drawn_ids)

    @property
    def tokens(self) -> npt.NDArray[np.void]:
        """The tokens it changes, each once."""
        return self._tokens[: self.num_tokens]

    @property
    def counts(self) -> bool:
        """Whether it matters what is drawn."""
        row = self.row[0]
        return bool(row["repetition"] != 1 or row["frequency"] != 0 or row["presence"] != 0)

    def masked(self, mask: npt.NDArray[np.int32], *, may_end: bool) -> PenaltyCounts:
        """The same for one token, with those alone that `mask` [V / 32 rounded up] has, too; with `may_end` whatever
        `min_tokens_left` is. What is drawn has to be counted in the original."""
        other = copy.copy(self)
        other.mask = mask if self.mask is None else self.mask & mask
        if may_end:
            other.row = self.row.copy()
            other.row["min_tokens_left"] = 0
        return other

    def count(self, token_ids: Sequence[int]) -> None:
        """Takes note of tokens that were drawn, as `count_drawn` does on a device."""
        self.row["min_tokens_left"] = max(0, int(self.row["min_tokens_left"][0]) - len(token_ids))
        self._ban(token_ids)
        if not self.counts:
            return
        for token_id in token_ids:
            place = self._places.setdefault(token_id, self.num_tokens)
            if place == self.num_tokens:
                if place == len(self._tokens):
                    self._tokens = np.concatenate([self._tokens, np.zeros(place + 64, _TOKEN)])
                self._tokens[place] = (token_id, 0, 0, 0)
                self.num_tokens += 1
            self._tokens["num_drawn"][place] += 1

    def _ban(self, drawn_ids: Sequence[int]) -> None:
        """Of tokens that end something bad, those have a bias of -inf that would complete it behind what was drawn."""
        self._bad.push(drawn_ids)
        banned = self._bad.banned
        for token_id in banned ^ self._banned:
            bias = -math.inf if token_id in banned else self._bias.get(token_id, 0.0)
            self._tokens["bias"][self._places[token_id]] = bias
        self._banned = banned


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of the rows of a batch, on a device and for a vocabulary, as the kernels read them.

    `penalize` and `count_drawn` read and write them when they run, so that both may be captured in a graph.
    """

    vocab_size: int
    rows: Tensor  # [B, 32] uint8, a PenaltyRow each
    tokens: Tensor  # [N, 16] uint8, PenaltyTokens
    masks: Tensor  # [M, V / 32 rounded up] int32, a bit for each token that is allowed, low ones first

    @classmethod
    def of(cls, rows: Sequence[PenaltyCounts], vocab_size: int, room: int, device: torch.device) -> Penalties:
        """A copy of rows for this vocabulary, with room to count `room` tokens that are drawn in each."""
        packed = np.concatenate([np.zeros(0, _ROW), *(row.row for row in rows)])
        num_tokens = np.array([row.num_tokens for row in rows], np.int64)
        spare = np.array([min(room, vocab_size - row.num_tokens) if row.counts else 0 for row in rows], np.int64)
        firsts = np.cumsum(np.concatenate([[0], num_tokens + spare]))
        packed["first_token"], packed["num_tokens"], packed["max_tokens"] = firsts[:-1], num_tokens, num_tokens + spare
        tokens = np.zeros(int(firsts[-1]), _TOKEN)
        masks = [row.mask for row in rows if row.mask is not None]
        packed["mask"] = -1
        packed["mask"][[row.mask is not None for row in rows]] = np.arange(len(masks))
        for row, first in zip(rows, firsts.tolist(), strict=False):
            tokens[first : first + row.num_tokens] = row.tokens
        all_masks = np.stack(masks) if masks else np.zeros((0, -(-vocab_size // 32)), np.int32)
        return cls(
            vocab_size,
            torch.from_numpy(packed.view(np.uint8).reshape(-1, _ROW.itemsize)).to(device, non_blocking=True),
            torch.from_numpy(tokens.view(np.uint8).reshape(-1, _TOKEN.itemsize)).to(device, non_blocking=True),
            torch.from_numpy(all_masks).to(device, non_blocking=True),
        )


def _tokens_of(row: PenaltyRow, vocab_size: int) -> npt.NDArray[np.void]:
    """The tokens that `row` changes, each once, in ascending order."""
    prompt = _ids(row.prompt_ids if row.repetition != 1 else (), vocab_size)
    drawn = _ids(row.drawn_ids if (row.repetition, row.frequency, row.presence) != (1, 0, 0) else (), vocab_size)
    ends = _ids(row.end_ids if row.min_tokens_left > 0 else (), vocab_size)
    biased = _ids(list(row.bias), vocab_size)
    bad = _ids([each[-1] for each in row.bad], vocab_size)
    token_ids = np.unique(np.concatenate([prompt, drawn, ends, biased, bad]))
    tokens = np.zeros(len(token_ids), _TOKEN)
    tokens["token_id"] = token_ids
    np.add.at(tokens["num_drawn"], np.searchsorted(token_ids, drawn), 1)
    tokens["bias"][np.searchsorted(token_ids, biased)] = list(row.bias.values())
    tokens["kind"][np.searchsorted(token_ids, prompt)] |= _IN_PROMPT
    tokens["kind"][np.searchsorted(token_ids, ends)] |= _ENDS
    return tokens


def mask_of(allowed_ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    """[V / 32 rounded up]: a bit for each token that is allowed, low ones first."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[_ids(allowed_ids, vocab_size)] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32).view(np.int32)


def _ids(token_ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int64]:
    ids = np.asarray(token_ids, np.int64).reshape(-1)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(f"token ids must be from 0 to {vocab_size - 1}, are {ids.min()} to {ids.max()}")
    return ids


def penalize(logits: Tensor, penalties: Penalties) -> None:
    """Changes `logits` [B, V] float32, contiguous, in place. Raises ValueError if they do not fit the penalties.

    Raw logprobs are of what was there before: where both are wanted, this takes a copy.
    """
    num_rows, vocab_size = _check(logits, penalties)
    addresses = (
        logits.data_ptr(), num_rows, vocab_size, penalties.rows.data_ptr(), penalties.tokens.data_ptr(),
        penalties.masks.data_ptr(),
    )  # fmt: skip
    if on_kernels(logits):
        _kernels.penalize(*addresses, stream_of(logits))
    elif logits.is_cpu:
        _core.penalize(*addresses)
    else:
        penalize_reference(logits, penalties)


def count_drawn(penalties: Penalties, token_ids: Tensor) -> None:
    """Takes note of the token drawn for each row, `token_ids` [B] int64; below 0 is none.

    What a row has no room left for is not counted. Raises ValueError if they do not fit the penalties.
    """
    _check_drawn(penalties, token_ids)
    rows, tokens = penalties.rows, penalties.tokens
    if KERNELS_BUILT and token_ids.is_cuda:
        _kernels.count_drawn(token_ids.data_ptr(), len(rows), rows.data_ptr(), tokens.data_ptr(), stream_of(token_ids))
    elif token_ids.is_cpu:
        _core.count_drawn(token_ids.data_ptr(), len(rows), rows.data_ptr(), tokens.data_ptr())
    else:
        count_drawn_reference(penalties, token_ids)


def penalize_reference(logits: Tensor, penalties: Penalties) -> None:
    """The twin of `penalize`, on any device."""
    _check(logits, penalties)
    rows, tokens = _columns(penalties.rows, _ROW), _columns(penalties.tokens, _TOKEN)
    for b, x in enumerate(logits):
        first = int(rows["first_token"][b])
        mine = slice(first, first + int(rows["num_tokens"][b]))
        num_drawn, kind, token_ids = tokens["num_drawn"][mine], tokens["kind"][mine], tokens["token_id"][mine].long()
        repetition = rows["repetition"][b]
        y = x[token_ids] + tokens["bias"][mine]
        there = (num_drawn > 0) | (kind & _IN_PROMPT > 0)
        y = torch.where(there, torch.where(y > 0, y / repetition, y * repetition), y)
        y = torch.where(num_drawn > 0, y - rows["frequency"][b] * num_drawn.float() - rows["presence"][b], y)
        x[token_ids] = torch.where((kind & _ENDS > 0) & (rows["min_tokens_left"][b] > 0), -math.inf, y)
        mask = int(rows["mask"][b])
        if mask >= 0:
            bits = penalties.masks[mask, :, None] >> torch.arange(32, device=x.device)
            x[bits.flatten()[: len(x)] & 1 == 0] = -math.inf


def count_drawn_reference(penalties: Penalties, token_ids: Tensor) -> None:
    """The twin of `count_drawn`, on any device."""
    _check_drawn(penalties, token_ids)
    rows, tokens = _columns(penalties.rows, _ROW), _columns(penalties.tokens, _TOKEN)
    for b, token_id in enumerate(token_ids.tolist()):
        if token_id < 0:
            continue
        rows["min_tokens_left"][b] = max(0, int(rows["min_tokens_left"][b]) - 1)
        if rows["repetition"][b] == 1 and rows["frequency"][b] == 0 and rows["presence"][b] == 0:
            continue
        first, count = int(rows["first_token"][b]), int(rows["num_tokens"][b])
        found = (tokens["token_id"][first : first + count] == token_id).nonzero()
        if len(found):
            tokens["num_drawn"][first + int(found[0])] += 1
        elif count < rows["max_tokens"][b]:
            tokens["token_id"][first + count] = token_id
            tokens["num_drawn"][first + count] = 1
            rows["num_tokens"][b] += 1


def _columns(packed: Tensor, struct: np.dtype[np.void]) -> dict[str, Tensor]:
    """Views of [N, bytes] by the names of `struct`, whose fields are all of 4 bytes."""
    return {
        name: packed.view(torch.float32 if struct[name] == np.float32 else torch.int32)[:, i]
        for i, name in enumerate(struct.names or ())
    }


def _check(logits: Tensor, penalties: Penalties) -> tuple[int, int]:
    if logits.dtype != torch.float32 or logits.ndim != 2 or not logits.is_contiguous():
        raise ValueError(f"logits must be contiguous float32 [B, V], is {logits.dtype} {list(logits.shape)}")
    wanted = (len(penalties.rows), penalties.vocab_size)
    if logits.shape != wanted:
        raise ValueError(f"penalties of {list(wanted)} do not fit logits {list(logits.shape)}")
    check_one_device(logits=logits, penalties=penalties.rows)
    return len(penalties.rows), penalties.vocab_size


def _check_drawn(penalties: Penalties, token_ids: Tensor) -> None:
    num_rows = len(penalties.rows)
    if token_ids.dtype != torch.int64 or token_ids.shape != (num_rows,) or not token_ids.is_contiguous():
        raise ValueError(
            f"token_ids must be contiguous int64 [{num_rows}], is {token_ids.dtype} {list(token_ids.shape)}"
        )
    check_one_device(token_ids=token_ids, penalties=penalties.rows)
