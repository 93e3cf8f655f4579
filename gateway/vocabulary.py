"""Whether token ids that a client names exist."""

from __future__ import annotations

from collections.abc import Sequence

from tercet.errors import InvalidFieldError


def check_token_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raises InvalidFieldError naming the first id that is not in the vocabulary."""
    if ids and max(ids) >= vocab_size:
        index = next(i for i, token_id in enumerate(ids) if token_id >= vocab_size)
        raise InvalidFieldError(
            f"token id {ids[index]} at index {index} is not in the vocabulary of {vocab_size}",
            field=f"{field}[{index}]",
            metadata={"token_id": str(ids[index]), "vocab_size": str(vocab_size)},
        )
