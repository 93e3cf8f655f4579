"""What the commands that talk to a running mesh share: options, and how an answer reaches the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from tercet import setting_check
from tercet.cli.finite import SOME_SECONDS
from tercet.cli.root import EXIT_INTERRUPTED
from tercet.client import DEFAULT_ADDRESS
from tercet.config import API_KEY_VARIABLE
from tercet.errors import InvalidFieldError

Value = TypeVar("Value")

# For calls that no model takes part in: beyond this, the gateway is gone.
CONTROL_TIMEOUT_S = 10.0


def _checked_address(_: click.Context, parameter: click.Parameter, value: str) -> str:
    """Raises click.BadParameter for what is no address in settings either."""
    if (problem := setting_check.address(value)) is not None:
        raise click.BadParameter(problem, param=parameter)
    return value


address_option = click.option(
    "--address",
    default=DEFAULT_ADDRESS,
    show_default=True,
    metavar="HOST:PORT",
    callback=_checked_address,
    help="Where the gateway listens.",
)


def checked_text(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """What a database and a message can hold. Raises click.BadParameter for bytes that are not UTF-8."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise click.BadParameter("is not UTF-8", param=parameter) from None
    return value


def _read_api_key(_: click.Context, parameter: click.Parameter, value: str) -> str:
    """The key itself, or what the file of `@FILE` holds. Raises click.BadParameter."""
    if value.startswith("@"):
        name = value[1:]
        try:
            value = Path(name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not a key"
            raise click.BadParameter(f"cannot read {name}: {problem}", param=parameter) from None
        if not value:
            # To send none would be to ask as somebody else.
            raise click.BadParameter(f"{name} is empty", param=parameter)
    if not all("!" <= character <= "~" for character in value):
        # Not shown: it may be most of one.
        raise click.BadParameter("is not a key", param=parameter)
    return value


api_key_option = click.option(
    "--api-key",
    default="",
    envvar=API_KEY_VARIABLE,
    metavar="@FILE",
    callback=_read_api_key,
    help="Your key, by the file that holds it. The key itself is taken, too, but all on this host see what stands on a "
    f"command line. Default: {API_KEY_VARIABLE}.",
)
model_option = click.option("--model", default="", metavar="NAME", help="Served model. Default: the gateway's first.")
timeout_option = click.option("--timeout", type=SOME_SECONDS, metavar="SECONDS", help="Deadline of each request.")


def run_async(work: Coroutine[Any, Any, Value]) -> Value:
    """Runs `work`; Ctrl-C cancels it, its calls with it, and exits with 130."""
    try:
        return asyncio.run(work)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo(err=True)
        sys.exit(EXIT_INTERRUPTED)


def read_text() -> str:
    """All of standard input. Raises errors.InvalidFieldError if it is not UTF-8."""
    return _decoded(sys.stdin.buffer.read())


def read_line() -> str | None:
    """The next line of standard input, None at its end. Raises errors.InvalidFieldError if it is not UTF-8."""
    line = sys.stdin.buffer.readline()
    return _decoded(line) if line else None


def _decoded(data: bytes) -> str:
    # Not by the terminal's encoding: in some locales that lets through what no request can hold.
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFieldError(f"standard input is not UTF-8 (byte {error.start:,})") from None


def show_text(text: str) -> None:
    """Writes text to standard output at once, whatever the terminal's encoding can hold."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
