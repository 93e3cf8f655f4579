"""What so many seconds of steps cost, by what the operator says that workers cost."""

from __future__ import annotations

import pytest

from tercet.config import load_config
from tercet.errors import ConfigError
from tercet.ledger.prices import Prices, prices_of
from tercet.sections import CostsSettings, LedgerSettings


@pytest.mark.parametrize(
    ("costs", "ledger", "expected"),
    [
        (CostsSettings(), LedgerSettings(), 0.0),
        # As before there were prices of several kinds.
        (CostsSettings(), LedgerSettings(gpu_hour_price=3600.0), 10.0),
        (CostsSettings(gpu_hour_price=1800.0), LedgerSettings(gpu_hour_price=3600.0), 5.0),
        (CostsSettings(gpu_hour_price=3600.0, cpu_hour_price=360.0), LedgerSettings(), 6.0 + 0.4),
        (CostsSettings(cpu_hour_price=360.0), LedgerSettings(gpu_hour_price=3600.0), 6.0 + 0.4),
        (CostsSettings(gpu_hour_price=3600.0, overhead=1.5), LedgerSettings(), 15.0),
        (CostsSettings(gpu_hour_price=3600.0, model_hour_prices=("small=720",)), LedgerSettings(), 2.0),
        (CostsSettings(gpu_hour_price=3600.0, model_hour_prices=("other=720", "a=b=1")), LedgerSettings(), 10.0),
    ],
)
def test_ten_seconds_of_which_four_had_no_gpu(costs: CostsSettings, ledger: LedgerSettings, expected: float) -> None:
    assert prices_of(costs, ledger).cost_of("small", 10.0, 4.0) == pytest.approx(expected)


def test_names_of_models_may_hold_what_separates_them() -> None:
    assert prices_of(CostsSettings(model_hour_prices=("a=b=1.5",)), LedgerSettings()).models == {"a=b": 1.5}
    assert Prices().cost_of("small", 1e9, 0.0) == 0.0


@pytest.mark.parametrize("wrong", ["small", "small=", "=3", "small=much", "small=-1", "small=nan", "small=1,small=2"])
def test_what_is_no_price_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"costs\.model_hour_prices"):
        load_config(flags={"costs.model_hour_prices": wrong})
