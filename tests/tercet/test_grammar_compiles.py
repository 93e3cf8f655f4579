"""Grammars wait for their turns to be compiled: one of a tenant at a time, whatever that brings along."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tercet.grammar.compiles import Compile, Compiles

PLACES = 3


def compile_of(key: int, owner: str) -> Compile:
    return Compile(key, owner.encode(), {})


class CompilesMachine(RuleBasedStateMachine):
    """Tenants put, threads take."""

    def __init__(self) -> None:
        super().__init__()
        self.compiles = Compiles(PLACES)
        self.last_key = 0
        self.waiting: list[Compile] = []
        self.taken: list[Compile] = []
        # By owner that might have been taken: who was, before it.
        self.overtaken: dict[bytes, list[bytes]] = {}
        # (owner that waited with nothing taken, owner whose turn was over meanwhile)
        self.had_turns: set[tuple[bytes, bytes]] = set()

    @rule(owner=st.sampled_from("abcde"))
    def put(self, owner: str) -> None:
        self.last_key += 1
        new = compile_of(self.last_key, owner)
        self.compiles.put(new)
        self.waiting.append(new)

    @rule()
    def take(self) -> None:
        found = self.compiles.take_now()
        busy = {each.owner for each in self.taken}
        may = [each for each in self.waiting if each.owner not in busy]
        is_full = len(self.taken) == PLACES or any(each.is_alone for each in self.taken)
        if found is None:
            # Unless somebody waits to be alone.
            assert is_full or not may or (self.taken and any(each.is_alone for each in may))
            return
        assert not is_full
        assert not (found.is_alone and self.taken)
        # In its owner's order, what is tried again first, and nobody is overtaken twice by one owner.
        own = [each for each in may if each.owner == found.owner]
        assert found is sorted(own, key=lambda each: not each.is_alone)[0]
        for owner in {each.owner for each in may} - {found.owner}:
            passed = self.overtaken.setdefault(owner, [])
            assert found.owner not in passed
            # Nor by any who had a turn when it waited.
            assert (owner, found.owner) not in self.had_turns
            passed.append(found.owner)
        self.overtaken.pop(found.owner, None)
        self.had_turns = {pair for pair in self.had_turns if pair[0] != found.owner}
        self.waiting.remove(found)
        self.taken.append(found)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), is_too_large=st.booleans())
    def leave(self, data: st.DataObject, is_too_large: bool) -> None:
        taken = data.draw(st.sampled_from(self.taken))
        again = taken.was_shared and not taken.is_dropped
        self.taken.remove(taken)
        busy = {each.owner for each in self.taken} | {taken.owner}
        self.had_turns |= {(each.owner, taken.owner) for each in self.waiting if each.owner not in busy}
        if is_too_large and self.compiles.put_back_alone(taken):
            assert again
            self.waiting.append(taken)
        else:
            assert not (is_too_large and again)
            assert self.compiles.finish(taken) is not taken.is_dropped

    @precondition(lambda self: self.waiting or self.taken)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from([*self.waiting, *self.taken]))
        self.compiles.drop(each.key)
        assert each.is_dropped is (each in self.taken)
        self.waiting = [other for other in self.waiting if other is not each]
        if not any(other.owner == each.owner for other in self.waiting):
            self.overtaken.pop(each.owner, None)
            self.had_turns = {pair for pair in self.had_turns if pair[0] != each.owner}

    @invariant()
    def one_of_an_owner(self) -> None:
        owners = [each.owner for each in self.taken]
        assert len(owners) == len(set(owners)) <= PLACES
        assert len(self.taken) == 1 or not any(each.is_alone for each in self.taken)

    def teardown(self) -> None:
        while self.waiting or self.taken:
            self.take()
            if self.taken:
                self.compiles.finish(self.taken.pop(0))


TestCompiles = CompilesMachine.TestCase


def test_whoever_brings_many_waits_for_them_himself() -> None:
    compiles = Compiles(1)
    for key in range(8):
        compiles.put(compile_of(key, "a"))
    first = compiles.take()
    compiles.put(compile_of(9, "b"))
    compiles.finish(first)
    order = []
    while (taken := compiles.take_now()) is not None:
        order.append(taken.key)
        compiles.finish(taken)
    # Its owner had a turn meanwhile.
    assert order == [9, *range(1, 8)]


def test_two_who_hold_both_places_keep_a_third_waiting_for_one_of_theirs() -> None:
    compiles = Compiles(2)
    for key in range(8):
        compiles.put(compile_of(key, "ab"[key % 2]))
    one, other = compiles.take(), compiles.take()
    compiles.put(compile_of(9, "c"))
    compiles.finish(one)
    third = compiles.take()
    assert third.key == 9
    # And again, as often as it asks.
    compiles.finish(other)
    beside = compiles.take()
    compiles.finish(third)
    again = compiles.take()
    compiles.put(compile_of(10, "c"))
    compiles.finish(beside)
    assert compiles.take().key == 10
    assert (beside.owner, again.owner) == (b"a", b"b")


def test_one_who_comes_does_not_wait_for_what_is_tried_again() -> None:
    compiles = Compiles(2)
    for key, owner in enumerate("ab"):
        compiles.put(compile_of(key, owner))
    one, other = compiles.take(), compiles.take()
    compiles.put(compile_of(9, "c"))
    assert compiles.put_back_alone(one)
    assert compiles.take().key == 9
    # Who comes now waits until it has been alone.
    compiles.put(compile_of(10, "d"))
    compiles.finish(other)
    assert compiles.take_now() is None


def test_what_was_too_large_beside_others_has_one_more_try_alone() -> None:
    compiles = Compiles(2)
    for key, owner in enumerate("ab"):
        compiles.put(compile_of(key, owner))
    one, other = compiles.take(), compiles.take()
    assert compiles.put_back_alone(one)
    compiles.put(compile_of(2, "c"))
    assert compiles.take_now() is None
    compiles.finish(other)
    assert compiles.take() is one
    assert compiles.take_now() is None
    assert not compiles.put_back_alone(one)
    assert compiles.finish(one)
    assert compiles.take().key == 2
