"""Markdown as the console shows it: what has a form gets it, and nothing is ever lost or made up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from .browser import Page

# [tag, text or children] of each element that a text becomes; texts stand as they are.
SHOW = """
const [texts, cut] = arguments;
const tree = (node) => node.nodeType === Node.TEXT_NODE ? node.data
  : [node.tagName.toLowerCase(), ...[...node.childNodes].map(tree)];
return import("/console/rich_text.js").then(({ RichText }) => texts.map((text) => {
  const root = document.createElement("div");
  const rich = new RichText(root);
  for (let end = cut; cut && end < text.length; end += cut) rich.show(text.slice(0, end));
  rich.show(text);
  return [...root.children].map(tree);
}));
"""
ALLOWED = {"p", "pre", "code", "hr", "span", "blockquote", "strong", "em"}
SIGNS = ["*", "**", "_", "`", "```", "\n", "\n\n", "# ", "- ", "1. ", "> ", "---", "~~~", " "]
WORDS = ["a", "bc", "ü", "<b>", "\\", "["]


async def show(page: Page, *texts: str, cut: int = 0) -> list[Any]:
    found: list[Any] = await page.run(SHOW, list(texts), cut)
    return found


def item(marker: str, text: str) -> list[Any]:
    return ["p", ["span", marker], ["span", text]]


def words(node: Any) -> str:
    return node if isinstance(node, str) else "".join(map(words, node[1:]))


def tags(node: Any) -> set[str]:
    return set() if isinstance(node, str) else {node[0]}.union(*map(tags, node[1:]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", [["p", "plain"]]),
        ("one\ntwo\n\nthree", [["p", "one\ntwo"], ["p", "three"]]),
        ("a **b *c* d** e", [["p", "a ", ["strong", "b ", ["em", "c"], " d"], " e"]]),
        ("2 * 3 * 4, snake_case_name", [["p", "2 * 3 * 4, snake_case_name"]]),
        ("_so_ and **not", [["p", ["em", "so"], " and **not"]]),
        ("`a *b*` ``c`d``", [["p", ["code", "a *b*"], " ", ["code", "c`d"]]]),
        ("## Title ", [["p", "Title "]]),
        ("- one\n- two\n  more", [item("• ", "one"), item("• ", "two\nmore")]),
        ("3. three", [item("3. ", "three")]),
        ("> said\n> twice\nme", [["blockquote", "said\ntwice"], ["p", "me"]]),
        ("***\ntext", [["hr"], ["p", "text"]]),
        ("```py\nx = 1\n\n# no\n```\nend", [["pre", ["code", "x = 1\n\n# no"]], ["p", "end"]]),
        ("~~~\n```\n~~~", [["pre", ["code", "```"]]]),
        ("```\nstill being wr", [["pre", ["code", "still being wr"]]]),
        ("[a](http://b) <i>c</i> ![d](e)", [["p", "[a](http://b) <i>c</i> ![d](e)"]]),
    ],
)
async def test_forms(modules: Page, text: str, shown: list[Any]) -> None:
    assert await show(modules, text) == [shown]
    # However it came.
    assert await show(modules, text, cut=1) == [shown]


async def test_nothing_is_lost_and_nothing_made_up(modules: Page) -> None:
    rng = random.Random(7)
    texts = ["".join(rng.choices(SIGNS + WORDS, k=rng.randint(1, 40))) for _ in range(1500)]
    whole = await show(modules, *texts)
    assert await show(modules, *texts, cut=3) == whole
    for text, blocks in zip(texts, whole, strict=True):
        assert set().union(*map(tags, blocks)) <= ALLOWED, text
        said = "".join(map(words, blocks))
        # The word behind a fence names a language.
        if "```" not in text and "~~~" not in text:
            assert [said.count(word) for word in WORDS] == [text.count(word) for word in WORDS], text


@pytest.mark.parametrize(
    "sign", ["*", "_", "`", "**a ", "*a_b", "> ", "- ", "#", "`` ` ", "\n", "[", "```", "- - ", "1. ", "* _"]
)
async def test_long_answers_take_no_longer_than_they_are(modules: Page, sign: str) -> None:
    """A page that took the square of 200,000 characters would be at it for minutes."""
    text = "# " + sign * (200_000 // len(sign)) + " x`"
    await asyncio.wait_for(show(modules, text), 20)
