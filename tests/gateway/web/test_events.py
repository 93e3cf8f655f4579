"""Events of an answer, however their text is cut."""

from __future__ import annotations

import json
import random

from .browser import Page

READ = """
const [pieces] = arguments;
return import("/console/events.js").then(({ EventReader }) => {
  const reader = new EventReader();
  return pieces.flatMap((piece) => reader.push(piece));
});
"""


async def test_events_do_not_depend_on_the_cut(modules: Page) -> None:
    rng = random.Random(7)
    events = [json.dumps({"text": text}) for text in ("", "hello", "a\nb", "data: x", "ü 世界 🙂")] + ["[DONE]"]
    for end in ("\n", "\r\n"):
        stream = "".join(f"data: {event}{end}{end}" for event in events)
        for _ in range(30):
            cuts = sorted(rng.sample(range(1, len(stream)), rng.randint(0, 40)))
            pieces = [stream[begin:until] for begin, until in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
            assert await modules.run(READ, pieces) == events


async def test_what_is_no_event_is_none(modules: Page) -> None:
    assert await modules.run(READ, [": comment\n\nevent: x\n\ndata: one\ndata:two\n\ndata: never ended\n"]) == [
        "one\ntwo"
    ]
