"""What the clients of the soak remember."""

from __future__ import annotations

import random

from bench.soak_clients import NUM_QUESTIONS, Memory, Question, questions

QUESTION = Question(1, (4, 5), 2)


def test_answers_that_are_beginnings_of_each_other_agree() -> None:
    memory = Memory()
    for tokens in ([7, 8], [7, 8, 9], [], [7]):
        memory.compare("soak-1", QUESTION, 0, tokens)
    assert memory.answers == {(1, 0): [7, 8, 9]}
    assert not memory.mismatches


def test_a_token_that_is_lost_repeated_or_changed_is_a_mismatch() -> None:
    for wrong in ([8, 9], [7, 7, 8], [7, 8, 10]):
        memory = Memory()
        memory.compare("soak-1", QUESTION, 1, [7, 8, 9, 10])
        memory.compare("soak-2", QUESTION, 1, wrong)
        assert memory.mismatches == ["soak-2: output 1 of question 1"]


def test_questions_differ_and_are_the_same_again() -> None:
    asked = questions(100, random.Random(3))
    assert asked == questions(100, random.Random(3))
    assert len({question.prompt for question in asked}) == NUM_QUESTIONS
    assert all(3 <= token < 100 for question in asked for token in question.prompt)
    assert {question.n for question in asked} == {1, 3}
