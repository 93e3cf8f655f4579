"""Whose prompts a request can find in the prefix cache, through three real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tercet.client import AsyncClient

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PROMPT = "A letter that nobody else should know was ever read here. " * 8


async def cached(client: AsyncClient, prompt: str, salt: str, n: int = 1) -> int:
    """Tokens of the prompt that a request found in the cache."""
    answer = await client.generate_once(prompt, temperature=0.0, max_tokens=3, ignore_eos=True, cache_salt=salt, n=n)
    found = answer.finished.usage.cached_tokens
    assert found is not None
    return found


@pytest.mark.parametrize("n", [1, 3])
async def test_a_salt_finds_its_own_prompts_and_no_others(client: AsyncClient, n: int) -> None:
    prompt = f"{n}. {PROMPT}"
    # Each finds nothing the first time, though all before it have left the same prompt, and all of it the second.
    salts = ["", "mine", "yours", "mine "]
    assert [await cached(client, prompt, salt, n) for salt in salts] == [0, 0, 0, 0]
    again = [await cached(client, prompt, salt, n) for salt in salts]
    assert min(again) == max(again) >= 16
    # What several outputs have left, one finds, and the other way round.
    assert await cached(client, prompt, "yours", 4 - n) == again[0]
    assert await cached(client, prompt, "theirs", 4 - n) == 0


async def test_a_salt_changes_no_token(client: AsyncClient) -> None:
    options = {"temperature": 0.9, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    plain = await client.generate_once(PROMPT, **options)
    salted = await client.generate_once(PROMPT, cache_salt="mine", **options)
    assert salted.token_ids == plain.token_ids


def test_the_command_sends_it(mesh: Mesh) -> None:
    def cached_by(*arguments: str) -> int:
        command = [sys.executable, "-m", "tercet", "generate", f"Told on a command line. {PROMPT}", "--raw", "--json"]
        done = subprocess.run(
            [*command, "--max-tokens", "2", "--address", mesh.address, *arguments],
            capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
        )  # fmt: skip
        return int(json.loads(done.stdout)["usage"]["cached_tokens"])

    assert [cached_by(), cached_by("--cache-salt", "a"), cached_by("--cache-salt", "b")] == [0, 0, 0]
    assert cached_by("--cache-salt", "a") >= 16
