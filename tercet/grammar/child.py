"""The process in which a service follows grammars: what explodes in time or memory ends this process, and no other.

It leaves with its service. GrammarProcess (process.py) is the other end of its pipes.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

# It makes no tensors. The library would load torch for those that others might give it.
sys.modules["torch"] = None  # type: ignore[assignment]

from ..errors import TercetError  # noqa: E402
from ..model_source import ModelFormat, ModelSource  # noqa: E402
from .compiles import Compile, Compiles  # noqa: E402
from .follower import Follower  # noqa: E402
from .frames import read_frame, write_frame  # noqa: E402
from .grammar import Grammar, Syntax  # noqa: E402
from .vocabulary import read_pieces  # noqa: E402

_LOOK_SECONDS = 0.05
_SPARE_SECONDS = 2.0
# By the clock on the wall it may take that many times as long as by the processor's.
_CROWDED = 4
# For the threads of the interpreter and the library, each of which reserves some address space.
_SPARE_BYTES = 256 << 20


class _Lane:
    """What one thread is at, and how long it may be: by its own time of the processor, as others that are at work
    beside it are nothing that it could help."""

    def __init__(self, seconds: float) -> None:
        """For the thread that makes it."""
        self.seconds = seconds
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._at: tuple[int, float, float] | None = None

    def begin(self, key: int) -> None:
        self._at = key, time.clock_gettime(self._clock), time.monotonic()

    def end(self) -> None:
        self._at = None

    def late_key(self) -> int | None:
        """What it is at for too long."""
        if (at := self._at) is None:
            return None
        key, begun, begun_at = at
        used, passed = time.clock_gettime(self._clock) - begun, time.monotonic() - begun_at
        return key if (used > self.seconds or passed > _CROWDED * self.seconds) and self._at is at else None


class _Child:
    """Texts go on in the thread that reads, grammars are compiled in others, and one more watches them all."""

    def __init__(self, follower: Follower, places: int, compile_seconds: float, step_seconds: float) -> None:
        self._follower = follower
        self._places = places
        self._compile_seconds, self._step_seconds = compile_seconds, step_seconds
        self._writing = threading.Lock()
        self._lanes: list[_Lane] = []
        self._compiles = Compiles(places)

    def run(self) -> None:
        """Until the pipe ends."""
        for target in (*[self._compile] * self._places, self._watch):
            threading.Thread(target=target, daemon=True).start()
        stepping = self._lane(self._step_seconds)
        while True:
            try:
                asked, _ = read_frame(sys.stdin.buffer)
            except EOFError:
                # A thread that is at work would have to be waited for.
                os._exit(0)
            if asked["do"] == "drop":
                self._compiles.drop(asked["key"])
                self._follower.drop(asked["key"])
            elif asked["do"] == "step" or self._follower.knows(_grammar(asked)):
                self._tell(asked["key"], *self._answer(stepping, asked))
            else:
                self._compiles.put(Compile(asked["key"], _grammar(asked).owner, asked))

    def _compile(self) -> None:
        lane = self._lane(self._compile_seconds)
        while True:
            taken = self._compiles.take()
            # Should this process die without a word, that is known.
            self._write({"key": taken.key, "begun": True})
            problem, mask, too_dear = self._answer(lane, taken.asked)
            if too_dear and self._compiles.put_back_alone(taken):
                continue
            if not self._compiles.finish(taken):
                self._follower.drop(taken.key)
            self._tell(taken.key, problem, mask, too_dear)

    def _lane(self, seconds: float) -> _Lane:
        self._lanes.append(lane := _Lane(seconds))
        return lane

    def _answer(self, lane: _Lane, asked: dict[str, Any]) -> tuple[str | None, bytes, bool]:
        """What is wrong with it, the mask, and whether it is a limit that is wrong."""
        lane.begin(asked["key"])
        mask, problem, too_dear = b"", None, False
        try:
            if asked["do"] == "step":
                mask = self._follower.step(asked["key"], asked["token_id"])
            elif asked["do"] == "open":
                mask = self._follower.open(asked["key"], _grammar(asked), asked["end_ids"], asked["token_ids"])
            else:
                self._follower.probe(_grammar(asked))
        except MemoryError:
            problem, too_dear = "it takes too much memory", True
        except ValueError as error:
            problem = str(error)
        lane.end()
        return problem, mask, too_dear

    def _tell(self, key: int, problem: str | None, mask: bytes, too_dear: bool) -> None:
        self._write({"key": key, "problem": problem, "too_dear": too_dear}, mask)

    def _write(self, head: dict[str, Any], mask: bytes = b"") -> None:
        with self._writing:
            write_frame(sys.stdout.buffer, head, mask)

    def _watch(self) -> None:
        longest = max(self._step_seconds, self._compile_seconds)
        while True:
            # Should the library not let this thread run, the kernel ends it all.
            signal.setitimer(signal.ITIMER_REAL, longest + _SPARE_SECONDS)
            time.sleep(_LOOK_SECONDS)
            for lane in [*self._lanes]:
                if (key := lane.late_key()) is not None:
                    problem = f"it takes more than {lane.seconds:g} s"
                    with self._writing:
                        # Behind its last word nothing more is said.
                        head = {"key": key, "problem": problem, "too_dear": True, "last": True}
                        write_frame(sys.stdout.buffer, head)
                        os._exit(0)


def _grammar(asked: dict[str, Any]) -> Grammar:
    return Grammar(Syntax(asked["syntax"]), asked["text"], bytes.fromhex(asked["salt"]))


def _pieces(model: dict[str, Any] | None, with_markers: bool) -> list[bytes]:
    """Those of a model, or a token for each byte and one that adds nothing."""
    if model is None:
        return [*(bytes([byte]) for byte in range(256)), b""]
    source = ModelSource(ModelFormat(model["format"]), Path(model["path"]))
    return read_pieces(source, model["vocab_size"], with_markers=with_markers)


def _limit_memory(max_bytes: int) -> None:
    """Beyond what it has by now."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + max_bytes + _SPARE_BYTES,) * 2)


def main() -> None:
    """The first message has the options; each other one asks for something."""
    options, _ = read_frame(sys.stdin.buffer)
    try:
        read = functools.partial(_pieces, options["model"])
        follower = Follower(read, options["max_bytes"] // 2, options["num_threads"])
        follower.warm_up()
    except TercetError as error:
        write_frame(sys.stdout.buffer, {"key": None, "problem": str(error)})
        return
    _limit_memory(options["max_bytes"])
    _Child(follower, options["places"], options["compile_seconds"], options["step_seconds"]).run()


if __name__ == "__main__":
    main()
