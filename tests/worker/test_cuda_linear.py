"""Products on a GPU: the precision of their sums is kept where it is asked for."""

from __future__ import annotations

import pytest
import torch

from tests.worker.cuda import DTYPES, assert_close, needs_cuda
from worker.ops.linear import Linear, linear_reference

pytestmark = needs_cuda


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 64, 300])
def test_float32_out_of_narrower_inputs(dtype: torch.dtype, with_bias: bool, num_rows: int) -> None:
    generator = torch.Generator("cuda").manual_seed(num_rows)
    x, weight, bias = (
        torch.randn(*shape, device="cuda", generator=generator).to(dtype)
        for shape in ((num_rows, 576), (999, 576), (999,))
    )
    weight /= 24
    linear = Linear(weight, bias if with_bias else None)
    want = linear_reference(x.double(), weight.double(), bias.double() if with_bias else None)
    got = linear(x, out_dtype=torch.float32)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
    assert_close(linear(x), want)
