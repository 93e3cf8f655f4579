"""What the operator decides of the scheduler's decisions."""

from __future__ import annotations

from dataclasses import dataclass

from .admission import AdmissionMode, QueueBounds
from .policy import Policy
from .progress import HUNG_SECONDS
from .traffic_class import CLASSES, DEFAULT_CLASS, TrafficClass


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the operator decides."""

    addresses: tuple[str, ...]
    policy: Policy
    bounds: QueueBounds
    # How long a sequence waits, in seconds, for a worker that can run it: a restart loads the weights anew.
    worker_grace_s: float = 30.0
    # How long a worker may owe a report, in seconds, where steps are short and others could go on with what it has.
    hung_s: float = HUNG_SECONDS
    classes: tuple[TrafficClass, ...] = tuple(CLASSES.values())
    default_class: str = DEFAULT_CLASS.name
    admission_mode: AdmissionMode = AdmissionMode.ENFORCE
