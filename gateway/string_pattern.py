"""Regular expressions inside JSON: what they match has to be a string as it stands, without a character that JSON
would have to escape. Pure."""

from __future__ import annotations

from .regex_check import check_regex

# What JSON escapes, inside a class of characters.
_ESCAPED = r"\"\\\x00-\x1f"
# Of sets that have some of these characters, those that have not.
_SETS = {"s": " ", "S": r"[^\s\"\\\x00-\x1f]", "W": r"[^\w\"\\\x00-\x1f]", "D": r"[^\d\"\\\x00-\x1f]"}
_CONTROLS = "nrtfv0"


def for_json(pattern: str) -> str:
    """A pattern of all that `pattern` matches and JSON can hold as it is. Raises ValueError if it asks for a character
    that JSON has to escape, and as `check_regex`."""
    check_regex(pattern)
    out: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "[":
            text, at = _class(pattern, at)
            out.append(text)
            continue
        if character == "\\" and at + 1 < len(pattern):
            escaped = pattern[at + 1]
            if escaped in '"\\' or escaped in _CONTROLS:
                raise ValueError(f"asks for \\{escaped}, which JSON has to escape")
            if escaped in "xuc":
                raise ValueError(f"has \\{escaped}: write the character itself")
            out.append(_SETS.get(escaped, f"\\{escaped}"))
            at += 2
            continue
        _check(character)
        out.append(f"[^{_ESCAPED}]" if character == "." else character)
        at += 1
    return "".join(out)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """A class of characters, which begins at `at`, without those that JSON escapes; and where it ends."""
    end = at + 1
    negated = pattern[end : end + 1] == "^"
    end += negated
    members: list[str] = []
    while end < len(pattern) and pattern[end] != "]":
        size = 2 if pattern[end] == "\\" else 1
        members.append(pattern[end : end + size])
        end += size
    if end >= len(pattern):
        raise ValueError("has a class of characters that does not end")
    text = "".join(members)
    if negated:
        return f"[^{text}{_ESCAPED}]", end + 1
    for index, member in enumerate(members):
        escaped = member[1:]
        if (escaped and escaped in '"\\SWDxuc') or (escaped and escaped in _CONTROLS):
            raise ValueError(f"has \\{escaped} in a class of characters, which JSON may have to escape")
        if not escaped:
            _check(member)
        if member == "-" and 0 < index < len(members) - 1:
            first, last = members[index - 1][-1], members[index + 1][-1]
            if any(first <= each <= last for each in '"\\') or first < " ":
                raise ValueError(f"has {first}-{last}, in which there are characters that JSON has to escape")
    return "[" + "".join(" " if member == "\\s" else member for member in members) + "]", end + 1


def _check(character: str) -> None:
    if character == '"' or character < " ":
        raise ValueError(f"asks for {character!r}, which JSON has to escape")
