"""Which prompts a workload has for a server: what the server takes decides between token ids and texts."""

from __future__ import annotations

from pathlib import Path

from .prompts import Passages, Questions, RandomTokens, Source, Words, vocabulary
from .question_file import read_questions
from .target import Described, Target
from .workload import SYNTHETIC, Workload
from .workload_error import WorkloadError

# Each is one token of any vocabulary that has seen English.
_COMMON = (
    "the of and to in is was for on that with as by at from his her it an were are which this also be has had one "
    "their its new after but who not they have two been other when all during there into time may more over only years"
)
# Of a text: a server tokenizes so much at once, and more than so much is no better.
_PIECE, _MOST = 1 << 16, 1 << 22


async def make_source(workload: Workload, target: Target, described: Described) -> Source:
    """Raises WorkloadError, LoadError."""
    if workload.reads_questions:
        return Questions(read_questions(Path(workload.prompts)))
    if workload.prompts == SYNTHETIC:
        if described.takes_tokens:
            return RandomTokens(vocabulary(described.vocab_size))
        return await _words(target)
    text = _read(Path(workload.prompts))
    if described.takes_tokens and (token_ids := await _token_ids(text, target)):
        return Passages(token_ids)
    return Words(text.split(), exact=False)


async def _words(target: Target) -> Words:
    """Common words, which are so many tokens if the server says so."""
    words = _COMMON.split()
    one, all_of_them = await target.tokenize(words[0]), await target.tokenize(_COMMON)
    if one is None or all_of_them is None:
        return Words(words, exact=False)
    extra = len(one) - 1
    return Words(words, exact=len(all_of_them) == len(words) + extra, extra=extra)


async def _token_ids(text: str, target: Target) -> list[int]:
    """Empty if the server does not say."""
    token_ids: list[int] = []
    for start in range(0, len(text), _PIECE):
        ids = await target.tokenize(text[start : start + _PIECE])
        if ids is None:
            return []
        token_ids += ids
    return token_ids


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise WorkloadError("prompts", f"cannot read {path}: {problem}") from None
    if not text.strip():
        raise WorkloadError("prompts", f"{path} is empty")
    return text[:_MOST]
