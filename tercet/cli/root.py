"""The command ``tercet``: its list of commands, and how an error becomes a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from typing import Any

import click

from tercet import __version__
from tercet.config import ConfigErrors
from tercet.errors import RequestError, StartupError

EXIT_REQUEST = 1
EXIT_STARTUP = 2
EXIT_INTERRUPTED = 130

# Command -> (file, one line of help), in the order of `tercet --help`. Files are imported when their command is used.
_COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Serve": {
        "up": ("up", "Run gateway, scheduler and worker together, in the foreground."),
        "gateway": ("services", "Run one gateway: the edge that clients talk to."),
        "scheduler": ("services", "Run one scheduler: order and time."),
        "worker": ("services", "Run one worker: a device with a model."),
    },
    "Allow": {
        "tenant": ("tenant", "Say who may use the mesh, and how much of it."),
        "tls": ("tls", "Make the certificates of a mesh, with a private CA."),
    },
    "Ask": {
        "generate": ("generate", "Continue or answer one prompt, and stream it."),
        "chat": ("chat", "Talk with the model, turn by turn."),
        "tokenize": ("tokenize", "Show the token ids of a text."),
    },
    "Look": {
        "health": ("health", "Show whether each process lives, is ready, lacks something or is full."),
        "fleet": ("fleet", "Show workers, KV blocks and requests of a running mesh."),
        "top": ("top", "Show live what a mesh is asked for, and how it keeps its promises."),
        "usage": ("usage", "Show what requests have used, as the ledger has it."),
        "explain": ("explain", "Show where the time of one request went."),
        "cancellations": ("cancellations", "Show which requests were cancelled, by whom, and how long that took."),
        "bench": ("bench", "Put load on a server, and see what became of each request."),
        "accept": ("accept", "Check a server against a contract, line by line."),
        "simulate": ("simulate", "Ask what so many workers would do with so many requests."),
        "dump-plans": ("dump_plans", "Write what the scheduler planned lately, and why, to a file."),
        "replay-plans": ("replay_plans", "Run such a file again: does the scheduler decide the same?"),
        "doctor": ("doctor", "Check this machine, and say what to do about each problem."),
        "demo": ("demo", "Start a mesh, ask it one question, stop it."),
    },
}


class Failure(click.ClickException):
    """An error on purpose: one line on standard error for each problem, no traceback."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Prints the lines."""
        for line in self.message.splitlines():
            click.echo(f"tercet: {line}", err=True, file=file)


def to_text(error: RequestError) -> str:
    """What went wrong, and after how long another try may succeed if that is known."""
    text = f"{error.reason}: {error.message}"
    if not error.retry_after_ms:
        return text
    return f"{text}; try again in {error.retry_after_ms / 1000:,.3g} s"


class Root(click.Group):
    """A group whose commands are imported on use, listed under headings."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return [name for commands in _COMMANDS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        for commands in _COMMANDS.values():
            if cmd_name in commands:
                module = importlib.import_module(f"tercet.cli.{commands[cmd_name][0]}")
                command: click.Command = getattr(module, cmd_name.replace("-", "_"))
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, commands in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RequestError as error:
            raise Failure(to_text(error), EXIT_REQUEST) from error
        except StartupError as error:
            problems = error.problems if isinstance(error, ConfigErrors) else (error,)
            raise Failure("\n".join(" ".join(str(problem).split()) for problem in problems), EXIT_STARTUP) from error
        except OSError as error:
            # A full disk is no bug. A closed pipe click ends quietly by itself.
            if error.errno not in _OUTPUT_FULL:
                raise
            _drop_output()
            raise Failure(f"cannot write: {error.strerror}", EXIT_REQUEST) from error


_OUTPUT_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def _drop_output() -> None:
    """Lets what standard output still holds go nowhere, since the interpreter would fail to write it at its end."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tercet")
def main() -> None:
    """Tercet serves large language models: a gateway, a scheduler and workers, three processes over gRPC.

    Start with `tercet up`, then `tercet generate "Hello"` in another terminal. `tercet COMMAND --help` shows the
    settings of a command; each can also stand in a TOML file (--config) or in the environment
    (TERCET_WORKER_MAX_NUM_SEQS for worker.max_num_seqs).
    """
