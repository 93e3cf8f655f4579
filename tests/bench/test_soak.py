"""The soak on a small model: every request comes to an end, in each of the ways there are."""

from __future__ import annotations

import re

import torch

from bench.soak import Soak, memory_line
from tests.worker.recall_model import CONFIG, RecallModel
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.swap_space import SwapSpace

CPU = torch.device("cpu")


def test_all_come_to_an_end() -> None:
    num_blocks, block_size = 400, 4
    kv_cache = KVCache(CONFIG, num_blocks, block_size, torch.float32, CPU)
    steps = HostSteps(RecallModel(), kv_cache)  # type: ignore[arg-type]
    executor = Executor(steps, kv_cache, SwapSpace(kv_cache, 100), check_every_step=True)
    executor.start()
    soak = Soak(executor, num_blocks, block_size, 8, CONFIG.vocab_size)
    tokens_by_tenth: list[int] = []
    soak.run(60, lambda: tokens_by_tenth.append(soak.tally.num_tokens))
    executor.stop()
    ends = soak.tally.ends
    assert ends["length"] + ends["stop"] + ends["cancel"] == 60
    assert min(ends["length"] + ends["stop"], ends["cancel"], ends["preempt"], ends["swap"]) > 0
    assert tokens_by_tenth == sorted(tokens_by_tenth)
    assert len(tokens_by_tenth) == 10


def test_memory_is_told() -> None:
    assert re.fullmatch(r"[1-9][\d,]* MiB on the host", memory_line(CPU))
