"""Stop strings against a search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_matcher import StopMatch, StopMatcher

texts = st.text(alphabet="abc", max_size=24)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def naive(text: str, strings: list[str]) -> StopMatch | None:
    """The earliest completed match, found by looking at every prefix."""
    for end in range(1, len(text) + 1):
        for string in strings:
            if text[:end].endswith(string):
                return StopMatch(string, end - len(string))
    return None


@given(st.lists(texts, max_size=6), stops)
def test_same_match_as_the_naive_search_and_never_holds_too_much(pieces: list[str], strings: list[str]) -> None:
    matcher, seen = StopMatcher(strings), ""
    for piece in pieces:
        seen += piece
        match = matcher.push(piece)
        assert match == naive(seen, strings)
        if match is not None:
            assert matcher.num_safe == match.start
            return
        held = seen[matcher.num_safe :]
        # What is held is a proper prefix of a stop string, and the longest such tail.
        tails = [seen[i:] for i in range(len(seen)) if any(s.startswith(seen[i:]) for s in strings)]
        assert held == max(tails, key=len, default="")


@given(st.lists(texts, max_size=3), st.lists(texts, max_size=4), stops)
def test_what_is_complete_in_text_that_does_not_count_is_no_match(
    free: list[str], pieces: list[str], strings: list[str]
) -> None:
    matcher, seen = StopMatcher(strings), ""
    for piece in free:
        assert matcher.push(piece, counts=False) is None
        seen += piece
    bound = len(seen)
    for piece in pieces:
        seen += piece
        match = matcher.push(piece)
        ends = [
            StopMatch(string, end - len(string))
            for end in range(bound + 1, len(seen) + 1)
            for string in strings
            if seen[:end].endswith(string)
        ]
        assert match == next(iter(ends), None)
        if match is not None:
            return


def test_ties_go_to_the_first_in_the_list() -> None:
    assert StopMatcher(["bc", "abc"]).push("abc") == StopMatch("bc", 1)
    assert StopMatcher(["abc", "bc"]).push("abc") == StopMatch("abc", 0)


def test_earliest_end_wins_over_earliest_start() -> None:
    assert StopMatcher(["abcd", "bc"]).push("abcd") == StopMatch("bc", 1)


def test_without_stop_strings_everything_is_safe() -> None:
    matcher = StopMatcher()
    assert matcher.push("anything") is None
    assert matcher.num_safe == 8
