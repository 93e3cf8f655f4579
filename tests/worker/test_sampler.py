"""The sampler: against its twin, against the distribution it promises, and a row alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import _core
from worker.ops.sampler import (
    PARAMS_BYTES,
    POSITION_OFFSET,
    SamplingRows,
    packed_row,
    sample,
    sample_packed,
    sample_reference,
)

INF = float("inf")


def sampling(
    num_rows: int = 1,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    seed: Any = 0,
    position: Any = 0,
) -> SamplingRows:
    """Columns of `num_rows` from a value or a value per row."""

    def column(value: Any, dtype: Any) -> npt.NDArray[Any]:
        return np.array(np.broadcast_to(np.asarray(value, dtype), num_rows))

    return SamplingRows(
        temperature=column(temperature, np.float32),
        top_k=column(top_k, np.int32),
        top_p=column(top_p, np.float32),
        min_p=column(min_p, np.float32),
        seed=column(seed, np.uint64),
        position=column(position, np.int64),
    )


def both(logits: torch.Tensor, rows: SamplingRows) -> list[int]:
    """What is sampled; the twin must agree."""
    chosen = sample(logits, rows)
    assert chosen.dtype == torch.int64
    assert chosen.tolist() == sample_reference(logits, rows).tolist()
    return chosen.tolist()


def draws(logits: list[float], count: int, **settings: Any) -> list[int]:
    """`count` draws at positions 0, 1, ... from one row of logits."""
    rows = sampling(count, position=np.arange(count), **settings)
    return both(torch.tensor([logits], dtype=torch.float32).repeat(count, 1), rows)


class TestNoise:
    """Philox4x32-10 as its authors published it."""

    @pytest.mark.parametrize(
        ("counter", "key", "words"),
        [
            ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
            ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
            (
                [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
                [0xA4093822, 0x299F31D0],
                [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
            ),
        ],
    )
    def test_published_vectors(self, counter: list[int], key: list[int], words: list[int]) -> None:
        assert _core.philox4x32(counter, key) == words

    def test_the_recipe_of_a_draw(self) -> None:
        """Seed, position and token id make the counter and the key as philox.h says."""
        seed, position, vocab_size = 0x0123456789ABCDEF, 0x76543210FEDCBA98, 300
        words = [
            _core.philox4x32([i >> 2, position & 0xFFFFFFFF, position >> 32, 0], [seed & 0xFFFFFFFF, seed >> 32])[i & 3]
            for i in range(vocab_size)
        ]
        noise = -np.log(-np.log((np.array(words) + 0.5) / 2**32))
        assert both(torch.zeros(1, vocab_size), sampling(seed=seed, position=position)) == [int(noise.argmax())]


class TestGreedy:
    """Temperature 0."""

    def test_the_lowest_id_wins_ties(self) -> None:
        assert draws([1, 3, 2, 3], 2, temperature=0) == [1, 1]
        assert draws([-0.0, 0.0], 1, temperature=0) == [0]

    @pytest.mark.parametrize("vocab_size", [1, 2, 127, 128, 129, 2047, 2048, 2049, 5000])
    def test_the_largest_wherever_it_is(self, vocab_size: int) -> None:
        logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(vocab_size))
        for index in {0, vocab_size // 2, vocab_size - 1}:
            row = logits.clone()
            row[index] = 100.0
            assert both(row[None], sampling(temperature=0)) == [index]

    def test_top_k_of_one_is_greedy_whatever_the_temperature(self) -> None:
        assert draws([0, 1, 1, 0.9], 20, temperature=5, top_k=1) == [1] * 20

    def test_a_tiny_temperature_is_greedy(self) -> None:
        assert draws([0.1, 0.2, 0.15], 20, temperature=1e-44) == [1] * 20


class TestBadLogits:
    """Rows that no token can be chosen from."""

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("position", [0, 64, 299])
    @pytest.mark.parametrize("value", [float("nan"), INF])
    def test_one_bad_value_fails_its_row_alone(self, temperature: float, position: int, value: float) -> None:
        logits = torch.zeros(3, 300)
        logits[:, 7] = 50.0
        logits[1, position] = value
        assert both(logits, sampling(3, temperature)) == [7, -1, 7]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_all_masked(self, temperature: float) -> None:
        assert both(torch.full((1, 300), -INF), sampling(temperature=temperature)) == [-1]

    @pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
    def test_masked_tokens_are_never_chosen(self, settings: dict[str, float]) -> None:
        logits = [-INF] * 200
        logits[3] = logits[150] = -5.0
        assert set(draws(logits, 60, temperature=10, **settings)) == {3, 150}

    def test_huge_differences(self) -> None:
        assert draws([-3e38, 3e38, 0], 5, temperature=1e-3) == [1] * 5


class TestFilters:
    """What min_p, top_k and top_p keep."""

    def kept(self, logits: list[float], **settings: Any) -> set[int]:
        """All ids that can be drawn: heat is high enough for each to come up."""
        return set(draws(logits, 400, **settings))

    def test_top_k_breaks_ties_by_id(self) -> None:
        assert self.kept([1, 2, 1, 1, 0], top_k=3) == {0, 1, 2}
        assert self.kept([1, 2, 1, 1, 0], top_k=5) == {0, 1, 2, 3, 4}
        assert self.kept([0] * 300, top_k=2) == {0, 1}

    def test_top_p_keeps_the_smallest_set(self) -> None:
        logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
        assert self.kept(logits, top_p=0.39) == {0}
        assert self.kept(logits, top_p=0.41) == {0, 1}
        assert self.kept(logits, top_p=0.69) == {0, 1}
        assert self.kept(logits, top_p=0.71) == {0, 1, 2}
        assert self.kept(logits, top_p=0.95) == {0, 1, 2, 3}

    def test_top_p_breaks_ties_by_id_and_keeps_one(self) -> None:
        assert self.kept([0] * 8, top_p=0.25) == {0, 1}
        assert self.kept([0] * 8, top_p=0.2501) == {0, 1, 2}
        assert self.kept([0, 0, 1], top_p=1e-9) == {2}
        assert self.kept([0, 0, 1], top_p=0) == {2}

    def test_min_p_is_relative_to_the_likeliest(self) -> None:
        logits = np.log([0.5, 0.25, 0.15, 0.1]).tolist()
        assert self.kept(logits, min_p=0.19) == {0, 1, 2, 3}
        assert self.kept(logits, min_p=0.21) == {0, 1, 2}
        assert self.kept(logits, min_p=0.51) == {0}
        assert self.kept([1, 1, 0], min_p=1) == {0, 1}

    def test_top_p_is_of_what_the_others_left(self) -> None:
        logits = np.log([0.4, 0.2, 0.2, 0.2]).tolist()
        assert self.kept(logits, top_p=0.65) == {0, 1, 2}
        assert self.kept(logits, top_p=0.65, top_k=2) == {0}, "0.4 is two thirds of 0.6"

    def test_temperature_comes_first(self) -> None:
        logits = np.log([0.6, 0.3, 0.1]).tolist()
        assert self.kept(logits, top_p=0.55) == {0}
        assert self.kept(logits, top_p=0.55, temperature=4) == {0, 1}


def test_a_row_is_packed_as_rows_are() -> None:
    rows = SamplingRows(
        temperature=np.array([0.7], np.float32),
        top_k=np.array([40], np.int32),
        top_p=np.array([0.9], np.float32),
        min_p=np.array([0.05], np.float32),
        seed=np.array([2**64 - 3], np.uint64),
        position=np.zeros(1, np.int64),
    )
    assert packed_row(0.7, 40, 0.9, 0.05, 2**64 - 3) == rows.packed().tobytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_equals_its_twin(data: st.DataObject) -> None:
    """On logits of every shape, with many ties and near-ties."""
    num_rows = data.draw(st.integers(0, 4))
    vocab_size = data.draw(st.sampled_from([1, 2, 3, 100, 127, 128, 129, 1000, 4097]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((num_rows, vocab_size)) * data.draw(st.sampled_from([0, 1e-6, 1, 4, 100]))
    logits[rng.random(logits.shape) < data.draw(st.sampled_from([0, 0.5]))] = -INF
    if data.draw(st.booleans()):
        logits = logits.round()

    def column(*values: float) -> list[float]:
        return data.draw(st.lists(st.sampled_from(values), min_size=num_rows, max_size=num_rows))

    rows = sampling(
        num_rows,
        temperature=column(0, 0.01, 0.7, 1, 3, 1e30),
        top_k=column(0, 1, 2, 40, 127, 1000, 2**31 - 1),
        top_p=column(0, 1e-6, 0.3, 0.9, 0.999, 1 - 2**-24, 1),
        min_p=column(0, 1e-30, 0.02, 0.5, 1),
        seed=rng.integers(0, 2**64, num_rows, np.uint64),
        position=rng.integers(0, 2**62, num_rows),
    )
    both(torch.from_numpy(logits.astype(np.float32)), rows)


def test_neighbouring_seeds_and_positions_are_independent() -> None:
    """Of 8 equal tokens, draws of neighbours agree one time in eight."""
    count = 20_000
    logits = torch.zeros(count, 8)
    base = sample(logits, sampling(count, seed=7, position=np.arange(count)))
    for other in (
        sampling(count, seed=8, position=np.arange(count)),
        sampling(count, seed=7, position=np.arange(count) + 1),
        sampling(count, seed=7 + (1 << 32), position=np.arange(count)),
        sampling(count, seed=7, position=np.arange(count) + (1 << 32)),
    ):
        agree = (sample(logits, other) == base).double().mean().item()
        assert abs(agree - 1 / 8) < 0.012, "five standard deviations"


def test_a_row_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(16, 3000, generator=generator) * 2
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "temperature": rng.choice([0, 0.5, 1, 2], 16),
        "top_k": rng.choice([0, 5, 50], 16),
        "top_p": rng.choice([0.5, 0.9, 1], 16),
        "min_p": rng.choice([0, 0.01], 16),
        "seed": rng.integers(0, 2**63, 16),
        "position": rng.integers(0, 1000, 16),
    }
    together = both(logits, sampling(16, **columns))
    alone = [
        both(logits[i : i + 1].contiguous(), sampling(1, **{name: values[i] for name, values in columns.items()}))[0]
        for i in range(16)
    ]
    assert alone == together
    order = rng.permutation(16)
    shuffled = both(
        logits[order].contiguous(), sampling(16, **{name: values[order] for name, values in columns.items()})
    )
    assert shuffled == [together[i] for i in order]


# Without torch, which takes longer to import than all the rest.
_EVERY_ISA = """
import numpy as np
from worker import _core
rng = np.random.default_rng(3)
logits = (rng.standard_normal((64, 5000)) * 3).astype(np.float32)
params = np.zeros(64, "f4, i4, f4, f4, u8, i8")
params["f0"], params["f1"] = rng.choice([0, 0.5, 1, 2], 64), rng.choice([0, 5, 500], 64)
params["f2"], params["f3"] = rng.choice([0.5, 0.9, 1], 64), rng.choice([0, 0.01], 64)
params["f4"], params["f5"] = rng.integers(0, 2**64, 64, np.uint64), rng.integers(0, 1000, 64)
chosen = np.zeros(64, np.int64)
_core.sample(logits.ctypes.data, 64, 5000, params.ctypes.data, chosen.ctypes.data)
print(chosen.tolist())
"""


def test_every_instruction_set_chooses_the_same() -> None:
    names = ["portable", "avx2", "avx512", "avx512bf16"]
    usable = names[: names.index(_core.isa()) + 1]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _EVERY_ISA], env={**os.environ, "TERCET_ISA": isa}, capture_output=True, check=True
        ).stdout
        for isa in usable
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b",") == 63


def test_an_instruction_set_that_is_not_there_is_an_error_for_many_rows_too() -> None:
    """Rows are chosen on the pool's threads, where an exception would end the process."""
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_ISA], env={**os.environ, "TERCET_ISA": "avx9000"}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "RuntimeError: TERCET_ISA: 'avx9000' cannot be used here" in done.stderr


class TestContract:
    """What the face refuses."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", -1), ("temperature", float("nan")), ("temperature", INF), ("top_k", -1), ("top_p", -0.1),
            ("top_p", 1.1), ("top_p", float("nan")), ("min_p", -0.1), ("min_p", 1.1), ("min_p", float("nan")),
        ],
    )  # fmt: skip
    def test_values_out_of_range(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=name):
            sampling(**{name: value})

    def test_columns_that_do_not_fit(self) -> None:
        good = sampling(2)
        columns = {name: getattr(good, name) for name in SamplingRows.__dataclass_fields__}
        for name in columns:
            with pytest.raises(ValueError, match="must be"):
                SamplingRows(**{**columns, name: columns[name][:1]})
            with pytest.raises(ValueError, match=name):
                SamplingRows(**{**columns, name: columns[name].astype(np.int16)})

    def test_logits_that_do_not_fit(self) -> None:
        for logits in (
            torch.zeros(3, 4),
            torch.zeros(2, 0),
            torch.zeros(2),
            torch.zeros(2, 4, dtype=torch.float64),
            torch.zeros(2, 8)[:, ::2],
        ):
            for function in (sample, sample_reference):
                with pytest.raises(ValueError, match="logits"):
                    function(logits, sampling(2))

    def test_no_rows(self) -> None:
        assert both(torch.zeros(0, 5), sampling(0)) == []

    def test_params_that_do_not_fit(self) -> None:
        logits, params = torch.zeros(2, 4), torch.from_numpy(sampling(2).packed())
        spaced = torch.zeros(2, 2 * PARAMS_BYTES, dtype=torch.uint8)[:, ::2]
        shifted = torch.zeros(2 * PARAMS_BYTES + 1, dtype=torch.uint8)[1:].view(2, PARAMS_BYTES)
        for wrong in (params[:1], params[:, :-1], params.to(torch.int8), spaced, shifted, params.to("meta")):
            with pytest.raises(ValueError, match=r"params|sampling rows"):
                sample_packed(logits, wrong)


class TestPacked:
    """Params as the bytes that kernels read."""

    def test_there_and_back(self) -> None:
        rows = sampling(3, [0, 0.5, 2], [0, 1, 2**31 - 1], [0, 0.5, 1], [1, 0, 0.25], [0, 2**64 - 1, 5], [0, 7, 2**62])
        again = SamplingRows.unpacked(rows.packed())
        for name in SamplingRows.__dataclass_fields__:
            assert getattr(again, name).tolist() == getattr(rows, name).tolist()
        assert SamplingRows.unpacked(sampling(0).packed()).seed.tolist() == []

    def test_position_is_where_it_is_said_to_be(self) -> None:
        params = torch.from_numpy(sampling(300, seed=3).packed())
        params[:, POSITION_OFFSET:].view(torch.int64).copy_(torch.arange(300)[:, None])
        logits = torch.zeros(300, 50)
        assert sample_packed(logits, params).tolist() == both(logits, sampling(300, seed=3, position=np.arange(300)))
