"""All tenants, as the gateways say, and what each of them uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tercet import errors

from .events import TenantsChanged
from .sequence import Request
from .tenant import ANYONE, NamedPlan
from .usage import Demand, Usage, fresh_usage


@dataclass(slots=True, eq=False)
class Tenants:
    """The plans of the newest revision that a live gateway stands by, whichever that is."""

    plans: dict[str, NamedPlan] = field(default_factory=dict)
    # Whether a gateway ever named tenants. From then on nobody is served without being one: a gateway that was started
    # without the others' store must not be a way around it.
    kept: bool = False
    # What each live gateway stream that named tenants told last, in the order of that.
    told: dict[int, TenantsChanged] = field(default_factory=dict)
    # Of those that asked for something, by their names and uids.
    usage: dict[tuple[str, str], Usage] = field(default_factory=dict)

    def learn(self, event: TenantsChanged, now: float) -> None:
        """An older revision waits until no gateway tells a newer one: a store may be put back to what it was, which
        each gateway sees at another moment."""
        self.kept = True
        self.told.pop(event.gateway, None)
        self.told[event.gateway] = event
        self._choose(now)

    def gateway_lost(self, gateway: int, now: float) -> None:
        """What it told stays if it was the last that told anything."""
        if self.told.pop(gateway, None) is not None and self.told:
            self._choose(now)

    def plan_of(self, tenant: str) -> NamedPlan:
        """Raises PermissionDeniedError for one that no gateway has named."""
        plan = self.plans.get(tenant) if self.kept or tenant else ANYONE
        if plan is None:
            who = f"there is no tenant {tenant!r}" if tenant else "the gateway does not say for which tenant it asks"
            raise errors.PermissionDeniedError(f"{who}; gateways of one mesh must share their tenants.store")
        return plan

    def usage_of(self, plan: NamedPlan, now: float) -> Usage:
        """What that tenant uses; to be kept with `let_in` if it is the first time."""
        return self.usage.get(plan.identity) or fresh_usage(plan, now)

    def let_in(self, request: Request, demand: Demand, now: float) -> None:
        """A request is accepted: it counts for its tenant."""
        usage = self.usage.setdefault(request.tenant.identity, self.usage_of(request.tenant, now))
        request.reservation = usage.accept(demand, request.traffic_class.name, now)

    def request_ended(self, request: Request, now: float) -> None:
        """Settles what was taken for it: the prompt, unless nothing of it was started, and what was generated."""
        usage = self.usage[request.tenant.identity]
        started = [sequence for sequence in request.sequences if sequence.placements]
        for sequence in started:
            usage.note_output(request.traffic_class.name, sequence.generated)
        used = started[0].prompt_length + sum(sequence.generated for sequence in started) if started else 0
        usage.ended(request.reservation, used, now - request.arrived_at, now)
        if self.kept and not usage.running and not self._named(request.tenant.identity):
            del self.usage[request.tenant.identity]

    def problems(self, live: Iterable[Request]) -> list[str]:
        """What does not add up with the requests that have not ended."""
        running: Counter[tuple[str, str]] = Counter()
        at_risk: Counter[tuple[str, str]] = Counter()
        for request in live:
            identity, taken = request.tenant.identity, request.reservation
            running[identity] += 1
            usage = self.usage.get(identity)
            if usage is not None and taken is not None and taken.bucket is usage.tokens:
                at_risk[identity] += taken.most - taken.tokens
        problems = [f"tenant {name!r} has requests and uses nothing" for name, _ in running.keys() - self.usage.keys()]
        for identity, usage in self.usage.items():
            tenant, count, risk = identity[0], running[identity], at_risk[identity]
            if usage.running != count:
                problems.append(f"tenant {tenant!r} is said to have {usage.running} requests, it has {count}")
            if usage.tokens is not None and usage.tokens.at_risk != risk:
                problems.append(
                    f"{usage.tokens.at_risk} tokens of tenant {tenant!r} are said to be at risk, {risk} are"
                )
        return problems

    def _choose(self, now: float) -> None:
        # Of the same revision, what was told last.
        newest = max(reversed(self.told.values()), key=lambda told: told.revision)
        self.plans = {plan.tenant: plan for plan in newest.plans}
        self._adopt(now)

    def _adopt(self, now: float) -> None:
        """Those that are gone and have nothing left are forgotten; what the others have left runs on."""
        for identity, usage in list(self.usage.items()):
            if self._named(identity):
                usage.adopt(self.plans[identity[0]], now)
            elif not usage.running:
                del self.usage[identity]

    def _named(self, identity: tuple[str, str]) -> bool:
        """Whether that tenant is there, and no other of its name."""
        plan = self.plans.get(identity[0])
        return plan is not None and plan.identity == identity
