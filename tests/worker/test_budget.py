"""How memory is divided, and what is said when it does not suffice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import load_config
from tercet.errors import ConfigError, StartupError
from worker.budget import Budget, Room, Usage, gpu_room, host_room, plan_budget
from worker.server import budget_lines

MIB, GIB = 1 << 20, 1 << 30
USAGE = Usage(weights=900, workspace=100)
ROOM = Room(2000, "what is free")
ARGUMENTS: dict[str, Any] = {
    "usage": USAGE,
    "room": ROOM,
    "kv_cache_memory": 640,
    "kv_block_bytes": 64,
    "block_size": 16,
    "max_model_len": 40,
}


def plan(**changes: Any) -> Budget:
    return plan_budget(**{**ARGUMENTS, **changes})


def first_words(budget: Budget) -> list[str]:
    return [line[:18].strip() for line in budget.lines()]


def test_blocks_fill_the_memory_given_to_them() -> None:
    budget = plan()
    assert budget == Budget(USAGE, 64, 16, 10, 40, 0, ROOM)
    assert (budget.kv_bytes, budget.num_tokens) == (640, 160)
    # 40 tokens take three blocks.
    assert budget.full_length_sequences == pytest.approx(10 / 3)


def test_captured_steps_and_libraries_take_memory_too() -> None:
    usage = Usage(900, 100, graphs=300, libraries=60)
    assert first_words(plan(usage=usage))[:4] == ["weights", "workspace", "graphs", "libraries"]
    with pytest.raises(StartupError, match=r"weights .* \+ graphs 0 MiB \+ libraries 0 MiB = "):
        plan(usage=Usage(900, 100, graphs=301, libraries=60))
    assert not {"graphs", "libraries"} & set(first_words(plan()))


def test_a_rest_that_holds_no_block_is_left() -> None:
    assert plan(kv_cache_memory=703).num_blocks == 10


def test_less_than_a_block_is_refused_with_the_numbers() -> None:
    with pytest.raises(StartupError, match=r"worker\.kv_cache_memory: 63 bytes .* needs 64 bytes"):
        plan(kv_cache_memory=63)


def test_more_than_there_is_is_refused_with_the_numbers() -> None:
    lower = r"lower worker\.kv_cache_memory, worker\.max_num_seqs or"
    with pytest.raises(StartupError, match=rf"not enough memory: .* \(what is free\): {lower}"):
        plan(room=Room(1639, "what is free"))
    assert plan(room=Room(1640, "what is free")).num_blocks == 10
    assert plan(room=None).num_blocks == 10


@given(
    weights=st.integers(0, 3000), others=st.integers(0, 1000), size=st.integers(0, 6000), block=st.integers(1, 90),
    length=st.integers(1, 200),
)  # fmt: skip
def test_the_cache_takes_what_is_left_or_is_refused(
    weights: int, others: int, size: int, block: int, length: int
) -> None:
    usage = Usage(weights, others // 2, others - others // 2)
    changes = {"usage": usage, "room": Room(size, ""), "kv_cache_memory": 0, "kv_block_bytes": block}
    if size - usage.total < -(-length // 16) * block:
        with pytest.raises(StartupError, match=rf"KV cache for {length} tokens .* lower model\.max_model_len"):
            plan(**changes, max_model_len=length)
        return
    budget = plan(**changes, max_model_len=length)
    assert budget.full_length_sequences >= 1
    assert 0 <= size - usage.total - budget.kv_bytes < block


def test_a_worker_may_use_its_part_of_the_whole_gpu() -> None:
    # The context is there already, and part of it.
    room = gpu_room(free=99 * GIB + 512 * MIB, total=100 * GIB, utilization=0.5)
    assert room.size == 50 * GIB - 512 * MIB
    assert "worker.gpu_memory_utilization 0.5 of the GPU's 102,400 MiB" in room.why
    assert room.remedy.startswith("raise worker.gpu_memory_utilization")
    # Whatever is no context belongs to others, and does no harm as long as there is enough.
    assert gpu_room(50 * GIB, 100 * GIB, 0.4).size == 40 * GIB - 512 * MIB


def test_a_worker_takes_no_more_than_others_leave() -> None:
    room = gpu_room(free=30 * GIB, total=100 * GIB, utilization=0.9)
    assert room.size == 30 * GIB - 256 * MIB
    assert room.why.startswith("what others leave of the GPU's 102,400 MiB")
    assert room.remedy.startswith("end what else runs")
    assert gpu_room(free=0, total=GIB, utilization=0.9).size == 0


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.001, 1))
def test_room_is_within_the_part_and_what_is_free(one: int, two: int, utilization: float) -> None:
    free, total = min(one, two) * 100 * MIB, max(one, two) * 100 * MIB
    assert 0 <= gpu_room(free, total, utilization).size <= min(free, total * utilization)


def test_a_part_of_the_host_is_named_as_such() -> None:
    room = host_room(3279, 0.5)
    assert room is not None
    with pytest.raises(StartupError, match=r"are available \(worker\.memory_fraction 0\.5 of what is free\)"):
        plan(room=room)
    assert plan(room=host_room(3280, 0.5)).num_blocks == 10
    assert host_room(None, 0.5) is None


def test_what_is_left_is_told() -> None:
    budget = plan(usage=Usage(900 * MIB, 100 * MIB), room=Room(2000 * MIB, "all of it"), kv_block_bytes=64 * MIB,
                  kv_cache_memory=640 * MIB)  # fmt: skip
    assert budget.lines()[-1].split() == ["left", "360", "MiB", "=", "of", "2,000", "MiB:", "all", "of", "it"]
    assert "left" not in first_words(plan(room=None))


def test_the_report_of_the_embedded_model() -> None:
    weights, workspace, cache, tokens, left = budget_lines(load_config(flags={"worker.kv_cache_memory": "256MiB"}))
    assert weights.split()[:3] == ["weights", "313", "MiB"]
    assert workspace.split()[0] == "workspace"
    assert "728 blocks of 16 tokens, 360.0 KiB each" in cache
    assert "11,648" in tokens
    assert left.endswith("what is free")
    assert "2,912 blocks of 16 tokens" in budget_lines(load_config())[2]  # 1 GiB


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


def test_a_worker_plans_with_its_part_of_the_host() -> None:
    with pytest.raises(StartupError, match=r"worker\.memory_fraction 1e-05 of what is free"):
        budget_lines(load_config(flags={"worker.memory_fraction": "0.00001"}))


def test_swap_space_is_whole_blocks_and_counted() -> None:
    assert plan(swap_space=0).num_swap_blocks == 0
    budget = plan(swap_space=3 * 64 + 63)
    assert (budget.num_swap_blocks, budget.swap_bytes) == (3, 192)
    assert len(budget.lines()) == len(plan().lines()) + 1
    assert "3 blocks" in budget.lines()[-1]
    with pytest.raises(StartupError, match=r"worker\.swap_space: 63 bytes .* needs 64 bytes"):
        plan(swap_space=63)


def test_swap_space_must_fit_where_it_is() -> None:
    assert plan(room=Room(1640 + 192, ""), swap_space=192, host_available=0).num_swap_blocks == 3
    with pytest.raises(StartupError, match=r"not enough memory: .* swap space .* lower .*worker\.swap_space"):
        plan(room=Room(1831, ""), swap_space=192, host_available=0)
    on_gpu = {"room": Room(1640, ""), "swap_space": 192, "device_is_host": False}
    assert plan(**on_gpu, host_available=192).num_swap_blocks == 3
    assert plan(**on_gpu, host_available=None).num_swap_blocks == 3
    with pytest.raises(StartupError, match=r"not enough host memory: .* lower worker\.swap_space"):
        plan(**on_gpu, host_available=191)


def test_a_worker_reports_the_swap_space_it_is_given() -> None:
    flags = {"worker.kv_cache_memory": "8MiB", "worker.swap_space": "4MiB"}
    assert "11 blocks for preempted sequences" in budget_lines(load_config(flags=flags))[-1]
