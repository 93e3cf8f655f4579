"""Whether the grammar library reads a regular expression as it is meant. Pure; compiles nothing.

It has no error for everything: an escape that it does not know is the letter itself to it, an anchor in the middle
nothing. A text would then match something else than was asked for.
"""

from __future__ import annotations

# Behind a backslash. Of what is not among these the library refuses some by itself.
_KNOWN = frozenset("adDefnrsStvwWxuc0")
_KNOWN_IN_CLASS = _KNOWN | {"b"}


def check_regex(text: str) -> None:
    """Raises ValueError for letters and digits behind a backslash that mean nothing, and for `^` and `$` elsewhere than
    at the ends, or at those of alternatives that are in no group."""
    depth, in_class, begins = 0, False, True
    at = 0
    while at < len(text):
        character, following = text[at], text[at + 1 : at + 2]
        begun, begins = begins, False
        if character == "\\":
            known = _KNOWN_IN_CLASS if in_class else _KNOWN
            if following.isascii() and following.isalnum() and following not in known:
                raise ValueError(f"has \\{following}, which is not known")
            at += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|":
            begins = depth == 0
        elif (character == "^" and not begun) or (character == "$" and (depth or following not in ("", "|"))):
            raise ValueError(f"has {character} where it is no end")
        at += 1
