"""The view of the traffic as the public contract has it."""

from __future__ import annotations

from tercet.v1 import operations_pb2 as pb

from .foresight import ForecastView
from .histogram import Histogram
from .traffic import Counts, Kept, Promises, Service
from .traffic_class import TrafficClass
from .traffic_view import Load, TrafficView


def traffic_to_proto(view: TrafficView, epoch: int, uptime_s: float) -> pb.Traffic:
    return pb.Traffic(
        epoch=epoch,
        uptime_seconds=uptime_s,
        classes=[
            pb.ClassTraffic(
                name="" if each.traffic_class is None else each.traffic_class.name,
                load=_load(each.load, view.now),
                counts=_counts(each.counts, each.load),
                targets=None if each.traffic_class is None else _targets(each.traffic_class),
                recent=_recent(each.recent),
            )
            for each in view.classes
        ],
        tenants=[
            pb.TenantTraffic(
                tenant_id=each.tenant,
                traffic_class=each.traffic_class,
                load=_load(each.load, view.now),
                counts=_counts(each.counts, each.load),
            )
            for each in view.tenants
        ],
        tenants_omitted=view.tenants_omitted,
        forecasts=[_forecast(model, revision, each) for model, revision, each in view.forecasts],
        cancels=[
            pb.CancelTraffic(origin=reason.name.lower(), freed=_spread(each))
            for reason, each in sorted(view.cancels.items())
        ],
    )


def _forecast(model: str, revision: str, view: ForecastView) -> pb.ForecastQuality:
    error = view.error
    return pb.ForecastQuality(
        model=model,
        model_revision=revision,
        count=0 if error is None else error.forecasts,
        median_error=0.0 if error is None else error.median,
        median_bias=0.0 if error is None else error.bias,
        tried=view.tried,
        tried_in_time=view.tried_in_time,
    )


def _load(load: Load, now: float) -> pb.TrafficLoad:
    return pb.TrafficLoad(
        requests_waiting=load.requests_waiting,
        tokens_waiting=load.tokens_waiting,
        oldest_seconds=None if load.oldest is None else now - load.oldest,
        requests_running=load.requests_running,
        kv_blocks=load.blocks,
    )


def _counts(counts: Counts, load: Load) -> pb.TrafficCounts:
    return pb.TrafficCounts(
        accepted=counts.accepted,
        refused=counts.refused,
        served=counts.served,
        cancelled=counts.cancelled,
        failed=counts.failed,
        promises=_promises(counts.promises),
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        generated_tokens=counts.generated_tokens + load.generated_tokens,
        wasted_tokens=counts.wasted_tokens,
        preemptions=counts.preemptions,
    )


def _promises(promises: Promises) -> pb.PromiseCounts:
    return pb.PromiseCounts(ttft=_kept(promises.ttft), gap=_kept(promises.gap), request=_kept(promises.request))


def _kept(kept: Kept) -> pb.PromiseCount:
    return pb.PromiseCount(kept=kept.kept, broken=kept.broken)


def _targets(traffic_class: TrafficClass) -> pb.TrafficTargets:
    targets = pb.TrafficTargets()
    if traffic_class.ttft is not None:
        targets.ttft_seconds, targets.ttft_percentile = traffic_class.ttft.seconds, traffic_class.ttft.percentile
    if traffic_class.gap is not None:
        targets.gap_seconds, targets.gap_percentile = traffic_class.gap.seconds, traffic_class.gap.percentile
    return targets


def _recent(service: Service) -> pb.RecentService:
    return pb.RecentService(
        promises=_promises(service.promises), ttft=_spread(service.ttft), queue=_spread(service.queue)
    )


def _spread(histogram: Histogram) -> pb.Spread:
    if not histogram.count:
        return pb.Spread()
    return pb.Spread(
        count=histogram.count,
        mean_seconds=histogram.total_s / histogram.count,
        p50_seconds=histogram.quantile(0.5),
        p95_seconds=histogram.quantile(0.95),
        p99_seconds=histogram.quantile(0.99),
    )
