"""How memory is divided, and what is said when it does not suffice."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.config import load_config
from tercet.errors import ConfigError, StartupError
from worker.budget import Budget, plan_budget
from worker.server import budget_lines

ARGUMENTS: dict[str, Any] = {
    "weight_bytes": 900,
    "workspace_bytes": 100,
    "kv_block_bytes": 64,
    "block_size": 16,
    "kv_cache_memory": 640,
    "available": 2000,
    "max_model_len": 40,
}


def test_blocks_fill_the_memory_given_to_them() -> None:
    budget = plan_budget(**ARGUMENTS)
    assert budget == Budget(900, 100, 64, 16, 10, 40)
    assert (budget.kv_bytes, budget.num_tokens) == (640, 160)
    # 40 tokens take three blocks.
    assert budget.full_length_sequences == pytest.approx(10 / 3)


def test_captured_steps_take_memory_too() -> None:
    budget = plan_budget(**{**ARGUMENTS, "graph_bytes": 300})
    assert [line.split()[0] for line in budget.lines()][:3] == ["weights", "workspace", "graphs"]
    plan_budget(**{**ARGUMENTS, "graph_bytes": 360})
    with pytest.raises(StartupError, match=r"weights .* \+ graphs 0 MiB = "):
        plan_budget(**{**ARGUMENTS, "graph_bytes": 361})
    assert all("graphs" not in line for line in plan_budget(**ARGUMENTS).lines())


def test_a_rest_that_holds_no_block_is_left() -> None:
    assert plan_budget(**{**ARGUMENTS, "kv_cache_memory": 703}).num_blocks == 10


def test_less_than_a_block_is_refused_with_the_numbers() -> None:
    with pytest.raises(StartupError, match=r"worker\.kv_cache_memory: 63 bytes .* needs 64 bytes"):
        plan_budget(**{**ARGUMENTS, "kv_cache_memory": 63})


def test_more_than_there_is_is_refused_with_the_numbers() -> None:
    with pytest.raises(StartupError, match="not enough memory"):
        plan_budget(**{**ARGUMENTS, "available": 1639})
    assert plan_budget(**{**ARGUMENTS, "available": 1640}).num_blocks == 10
    assert plan_budget(**{**ARGUMENTS, "available": None}).num_blocks == 10


def test_the_report_of_the_embedded_model() -> None:
    weights, workspace, cache, tokens = budget_lines(load_config(flags={"worker.kv_cache_memory": "256MiB"}))
    assert weights.split()[:3] == ["weights", "313", "MiB"]
    assert workspace.split()[0] == "workspace"
    assert "728 blocks of 16 tokens, 360.0 KiB each" in cache
    assert "11,648" in tokens


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"worker.device": "gpu"}, "worker.device"),
        ({"worker.device": "meta"}, "worker.device"),
        ({"worker.device": "cuda:99"}, "worker.device"),
        ({"worker.dtype": "float16"}, "worker.dtype"),
        ({"model.max_model_len": 10_000_000}, "model.max_model_len"),
    ],
)
def test_settings_that_cannot_be_are_named(flags: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        budget_lines(load_config(flags=flags))
    assert caught.value.key == key


def test_a_part_of_the_memory_is_named_as_such() -> None:
    with pytest.raises(StartupError, match=r"are available \(worker\.memory_fraction 0\.5 of what is free\)"):
        plan_budget(**{**ARGUMENTS, "available": 3279, "memory_fraction": 0.5})
    assert plan_budget(**{**ARGUMENTS, "available": 3280, "memory_fraction": 0.5}).num_blocks == 10


def test_a_worker_plans_with_its_part_of_the_host() -> None:
    with pytest.raises(StartupError, match=r"worker\.memory_fraction 1e-05 of what is free"):
        budget_lines(load_config(flags={"worker.memory_fraction": "0.00001"}))


def test_swap_space_is_whole_blocks_and_counted() -> None:
    assert plan_budget(**ARGUMENTS, swap_space=0).num_swap_blocks == 0
    budget = plan_budget(**ARGUMENTS, swap_space=3 * 64 + 63)
    assert (budget.num_swap_blocks, budget.swap_bytes) == (3, 192)
    assert len(budget.lines()) == len(plan_budget(**ARGUMENTS).lines()) + 1
    assert "3 blocks" in budget.lines()[-1]
    with pytest.raises(StartupError, match=r"worker\.swap_space: 63 bytes .* needs 64 bytes"):
        plan_budget(**ARGUMENTS, swap_space=63)


def test_swap_space_must_fit_where_it_is() -> None:
    on_cpu = {**ARGUMENTS, "available": 1640 + 192, "swap_space": 192}
    assert plan_budget(**on_cpu, host_available=0).num_swap_blocks == 3
    with pytest.raises(StartupError, match=r"not enough memory: .* swap space .* lower .*worker\.swap_space"):
        plan_budget(**{**on_cpu, "available": 1831})
    on_gpu = {**ARGUMENTS, "available": 1640, "swap_space": 192, "device_is_host": False}
    assert plan_budget(**on_gpu, host_available=192).num_swap_blocks == 3
    assert plan_budget(**on_gpu, host_available=None).num_swap_blocks == 3
    with pytest.raises(StartupError, match=r"not enough host memory: .* lower worker\.swap_space"):
        plan_budget(**on_gpu, host_available=191)


def test_a_worker_reports_the_swap_space_it_is_given() -> None:
    flags = {"worker.kv_cache_memory": "8MiB", "worker.swap_space": "4MiB"}
    assert "11 blocks for preempted sequences" in budget_lines(load_config(flags=flags))[-1]
