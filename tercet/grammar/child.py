"""The process in which a service follows grammars: what explodes in time or memory ends this process, and no other.

It leaves with its service. GrammarProcess (process.py) is the other end of its pipes.
"""

from __future__ import annotations

import functools
import os
import queue
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
from .follower import Follower  # noqa: E402
from .frames import read_frame, write_frame  # noqa: E402
from .grammar import Grammar, Syntax  # noqa: E402
from .vocabulary import read_pieces  # noqa: E402

_LOOK_SECONDS = 0.05
_SPARE_SECONDS = 2.0
# For the threads of the interpreter and the library, each of which reserves some address space.
_SPARE_BYTES = 256 << 20


class _Lane:
    """What one thread is at, and how long it may be."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.key: int | None = None
        self.since = 0.0

    def is_late(self) -> bool:
        return self.key is not None and time.monotonic() - self.since > self.seconds


class _Child:
    """Texts go on in the thread that reads, grammars are compiled in another one, and a third watches both."""

    def __init__(self, follower: Follower, compile_seconds: float, step_seconds: float) -> None:
        self._follower = follower
        self._writing = threading.Lock()
        self._stepping, self._compiling = _Lane(step_seconds), _Lane(compile_seconds)
        self._to_compile: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def run(self) -> None:
        """Until the pipe ends."""
        for target in (self._compile, self._watch):
            threading.Thread(target=target, daemon=True).start()
        while True:
            try:
                asked, _ = read_frame(sys.stdin.buffer)
            except EOFError:
                # A thread that is at work would have to be waited for.
                os._exit(0)
            if asked["do"] == "drop":
                self._follower.drop(asked["key"])
            elif asked["do"] == "step" or self._follower.knows(_grammar(asked)):
                self._answer(self._stepping, asked)
            else:
                self._to_compile.put(asked)

    def _compile(self) -> None:
        while True:
            self._answer(self._compiling, self._to_compile.get())

    def _answer(self, lane: _Lane, asked: dict[str, Any]) -> None:
        lane.since, lane.key = time.monotonic(), asked["key"]
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
        lane.key = None
        self._tell(asked["key"], problem, mask, too_dear=too_dear)

    def _tell(self, key: int, problem: str | None, mask: bytes = b"", *, too_dear: bool) -> None:
        with self._writing:
            write_frame(sys.stdout.buffer, {"key": key, "problem": problem, "too_dear": too_dear}, mask)

    def _watch(self) -> None:
        longest = max(self._stepping.seconds, self._compiling.seconds)
        while True:
            # Should the library not let this thread run, the kernel ends it all.
            signal.setitimer(signal.ITIMER_REAL, longest + _SPARE_SECONDS)
            time.sleep(_LOOK_SECONDS)
            for lane in (self._stepping, self._compiling):
                if lane.is_late() and (key := lane.key) is not None:
                    self._tell(key, f"it takes more than {lane.seconds:g} s", too_dear=True)
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
    _Child(follower, options["compile_seconds"], options["step_seconds"]).run()


if __name__ == "__main__":
    main()
