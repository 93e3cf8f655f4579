"""What the time of workers costs. In a currency of the operator's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tercet.sections import CostsSettings, LedgerSettings

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Of an hour of a worker with a GPU, and of one without; of models that have one of their own that counts. All is
    multiplied by `overhead`."""

    gpu_hour: float = 0.0
    cpu_hour: float = 0.0
    overhead: float = 1.0
    models: Mapping[str, float] = field(default_factory=dict)

    def cost_of(self, model: str, gpu_s: float, cpu_s: float) -> float:
        """Of so many seconds of steps, `cpu_s` of them on workers without a GPU."""
        own = self.models.get(model)
        gpu, cpu = (self.gpu_hour, self.cpu_hour) if own is None else (own, own)
        return ((gpu_s - cpu_s) * gpu + cpu_s * cpu) * self.overhead / _HOUR_S


def prices_of(costs: CostsSettings, ledger: LedgerSettings) -> Prices:
    """As the settings have them: what is 0 is what stands before it."""
    gpu_hour = costs.gpu_hour_price or ledger.gpu_hour_price
    models = {}
    for each in costs.model_hour_prices:
        name, _, price = each.rpartition("=")
        models[name] = float(price)
    return Prices(gpu_hour, costs.cpu_hour_price or gpu_hour, costs.overhead, models)
