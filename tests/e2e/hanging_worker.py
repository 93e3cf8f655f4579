"""A worker whose device hangs as long as there is a file with its port for a name in HANG_FOLDER."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tercet.cli.root import main
from worker.host_steps import HostSteps
from worker.steps import Computed

_SIGN = Path(os.environ["HANG_FOLDER"]) / os.environ["TERCET_WORKER_PORT"]
_next = HostSteps.next


def _next_or_never(self: HostSteps) -> Computed | None:
    while _SIGN.exists():
        time.sleep(0.05)
    return _next(self)


if __name__ == "__main__":
    HostSteps.next = _next_or_never  # type: ignore[method-assign]
    main()
