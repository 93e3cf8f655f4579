"""Whether time tells a tenant what another one has asked: a mesh of real processes, the embedded model on the CPU.

    python -m bench.foreign_prefix --pairs 60

One tenant asks half of the prompts, all different, so that the prefix cache has them. Then another one asks all, once
each, in an order drawn anew: foreign prompts and prompts that nobody has asked. If what is cached of others were worth
anything, first tokens of the former would come sooner. As a control the first tenant asks its own prompts again, and as
many new ones. The p-value is the share of random partitions of the same times (`--permutations`) which lie as far
apart, by their ranks: small says that the two can be told apart.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click
import uvloop

from bench.plan_mesh import fixed, plan_mesh
from bench.plan_parts import prompt, token_moments
from tercet.client import AsyncClient
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store

Times = list[float]


def p_value(these: Sequence[float], those: Sequence[float], permutations: int, rng: random.Random) -> float:
    """Of ranks as far apart on the mean as theirs, if both were drawn alike; never 0."""
    order = sorted([*these, *those])
    # Not the times: a single late answer would decide.
    pooled = [order.index(value) for value in (*these, *those)]

    def apart() -> float:
        return abs(fmean(pooled[: len(these)]) - fmean(pooled[len(these) :]))

    seen, as_far = apart(), 1
    for _ in range(permutations):
        rng.shuffle(pooled)
        as_far += apart() >= seen
    return as_far / (permutations + 1)


async def first_token_ms(client: AsyncClient, tokens: Sequence[int]) -> float:
    """Of one request on an idle mesh."""
    return (await token_moments(client, tokens, 2))[0] * 1e3


async def compare(
    client: AsyncClient, cached: Sequence[list[int]], new: Sequence[list[int]], rng: random.Random
) -> tuple[Times, Times]:
    """First tokens of both kinds of prompts, one after the other in an order drawn anew."""
    asked = [(0, tokens) for tokens in cached] + [(1, tokens) for tokens in new]
    rng.shuffle(asked)
    found: tuple[Times, Times] = ([], [])
    for kind, tokens in asked:
        found[kind].append(await first_token_ms(client, tokens))
    return found


async def _measure(pairs: int, length: int, permutations: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/tenants.db", time.time)
        store.create()
        keys = {name: store.add(name, TenantPlan(), operator=False).text for name in ("alice", "bob")}
        store.close()
        # All that alice asks stays in the cache, and half as much again.
        # Whatever is asked stays in the cache.
        flags = fixed(0, tenants_store=f"{folder}/tenants.db", worker_kv_cache_memory=2 << 30)
        async with (
            plan_mesh(flags) as mesh,
            AsyncClient(mesh.gateway, api_key=keys["alice"]) as alice,
            AsyncClient(mesh.gateway, api_key=keys["bob"]) as bob,
        ):
            secrets = [prompt(length, rng) for _ in range(pairs)]
            for client in (bob, alice):
                for _ in range(8):
                    await first_token_ms(client, prompt(length, rng))
            for tokens in secrets:
                await first_token_ms(alice, tokens)
            figures: dict[str, Any] = {"pairs": pairs, "prompt_tokens": length}
            for name, client in (("foreign", bob), ("own", alice)):
                fresh = [prompt(length, rng) for _ in range(pairs)]
                cached, new = await compare(client, secrets, fresh, rng)
                figures[name] = {
                    "cached_ms": {"median": median(cached), "mean": fmean(cached)},
                    "new_ms": {"median": median(new), "mean": fmean(new)},
                    "p": p_value(cached, new, permutations, rng),
                }
            return figures


@click.command()
@click.option("--pairs", default=60, show_default=True, help="prompts of each kind")
@click.option("--length", default=256, show_default=True, help="tokens of a prompt")
@click.option("--permutations", default=10_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(pairs: int, length: int, permutations: int, seed: int, out: Path | None) -> None:
    """Measures, and prints a line for the other tenant's prompts and one for the own."""
    figures = uvloop.run(_measure(pairs, length, permutations, seed))
    for name in ("foreign", "own"):
        found = figures[name]
        print(
            f"{name:<8} medians: cached {found['cached_ms']['median']:.2f}, new {found['new_ms']['median']:.2f} ms; "
            f"means: {found['cached_ms']['mean']:.2f} and {found['new_ms']['mean']:.2f} ms; p = {found['p']:.4f}"
        )
    if out is not None:
        out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
