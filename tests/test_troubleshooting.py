"""What docs/troubleshooting.md, explain.md and costs.md name is there: settings, commands, metrics, events, reasons."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tercet.class_settings import class_fields
from tercet.cli.root import main
from tercet.config import setting_keys
from tercet.errors import request_error_types
from tercet.explain.parts import Kind
from tercet.ledger.row import STAGES, Outcome

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["docs/troubleshooting.md", "docs/explain.md", "docs/costs.md"]
SECTIONS = {key.partition(".")[0] for key in setting_keys()}
# Words between backticks that look like names of events, and are others: columns, fields of requests, queries.
NO_EVENTS = {
    "cache_salt", "cpu_hour_price", "cpu_s", "gap_ms", "gpu_hour_price", "gpu_ms", "gpu_s", "kv_share", "max_tokens",
    "model_hour_prices", "overhead", "prompt_logprobs", "total_s", "ttft_ms", "checks_s", "stream_s",
}  # fmt: skip


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def spans(page: str) -> set[str]:
    """What stands between backticks, in whatever line."""
    without_blocks = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", without_blocks))


def commands(page: str) -> set[str]:
    """All that begins with `tercet `, between backticks or as a line of a block."""
    lines = re.findall(r"^(?:\$ )?(tercet [a-z].*)$", text_of(page), re.MULTILINE)
    return {each for each in (*spans(page), *lines) if re.match(r"tercet [a-z][a-z-]+( |$)", each)}


SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for name in ("gateway", "scheduler", "worker", "tercet")
    for path in (ROOT / name).rglob("*.py") if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_settings_are_there(page: str) -> None:
    found = 0
    for span in spans(page):
        for section, key in re.findall(r"(?<![\w./])([a-z]+)\.(?:NAME\.)?([a-z_]+)(?![\w.(/])", span):
            if section == "classes":
                assert key in class_fields(), span
            elif section in SECTIONS and not span.startswith(("http", "docs/")):
                assert f"{section}.{key}" in setting_keys(), span
            else:
                continue
            found += 1
    assert found


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_flags_are_there(page: str) -> None:
    assert commands(page)
    for line in commands(page):
        words = line.split()[1:]
        command: click.Command = main
        context = click.Context(main)
        while isinstance(command, click.Group) and words:
            found = command.get_command(context, words.pop(0))
            assert found is not None, line
            command = found
        if command.context_settings.get("ignore_unknown_options"):
            continue
        flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        for word in words:
            if word.startswith("-"):
                assert word.partition("=")[0] in flags, f"{line}: {word}"


@pytest.mark.parametrize("page", PAGES)
def test_metrics_are_there(page: str) -> None:
    there = set(re.findall(r"^\| `(tercet_\w+)`", text_of("docs/metrics.md"), re.MULTILINE))
    assert len(there) > 50
    for span in spans(page):
        for name in re.findall(r"\btercet_[a-z_]+\b", span):
            assert name in there, span


@pytest.mark.parametrize("page", PAGES)
def test_events_and_reasons_are_there(page: str) -> None:
    for span in spans(page):
        if re.fullmatch(r"[A-Z][A-Z_]+[A-Z]", span):
            assert span in request_error_types(), span
        elif re.fullmatch(r"[a-z]+(_[a-z]+)+", span) and span not in NO_EVENTS and not span.startswith("tercet_"):
            known = f'"{span}"' in SOURCES or (span == "worker_late" and 'f"worker_{' in SOURCES)
            assert known, span


def test_what_can_take_the_time_is_explained() -> None:
    told = text_of("docs/explain.md")
    for stage in STAGES:
        assert f"| `{stage}` |" in told
    # The others have the words of their stage.
    stages = {"checks", "tokenize", "prepare", "admission", "queue", "prompt", "tokens", "reader"}
    for kind in {kind.value for kind in Kind} - stages:
        assert f"`{kind}`" in told, kind


def test_outcomes_are_those_of_the_ledger() -> None:
    told = re.findall(r"outcome (?:IN \(|= )([^)\n`]+)", text_of("docs/troubleshooting.md"))
    named = {word for each in told for word in re.findall(r"'(\w+)'", each)}
    assert named
    assert named <= {outcome.value for outcome in Outcome}
