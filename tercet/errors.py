"""The typed errors of the mesh, with the codes of gRPC that they have.

    TercetError
    ├── StartupError                 a service cannot start; never on the wire
    │   ├── ConfigError              a setting is wrong; names its key
    │   │   ├── StoreError           tenants.store cannot be read or written
    │   │   └── LedgerError          ledger.database cannot be read or written
    │   └── ModelError               model files are missing, broken or unsupported
    ├── TenantError                  no such tenant or key, or one that is there already; never on the wire
    ├── PlanFileError                a file is no plan log, or is broken; never on the wire
    ├── LoadError                    a load cannot be offered, or what came of one cannot be read; never on the wire
    └── RequestError                 one request failed; has a stable reason
        ├── InvalidFieldError        INVALID_ARGUMENT     INVALID_FIELD
        │   ├── PromptTooLongError                        PROMPT_TOO_LONG
        │   ├── KvNeverFitsError                          KV_NEVER_FITS
        │   └── AnswerTooLargeError                       ANSWER_TOO_LARGE
        ├── UnauthenticatedError     UNAUTHENTICATED      UNAUTHENTICATED
        ├── PermissionDeniedError    PERMISSION_DENIED    PERMISSION_DENIED
        ├── ModelNotFoundError       NOT_FOUND            MODEL_NOT_FOUND
        ├── DuplicateRequestError    ALREADY_EXISTS       DUPLICATE_REQUEST
        ├── TenantQuotaError         RESOURCE_EXHAUSTED   TENANT_QUOTA
        ├── QueueFullError           RESOURCE_EXHAUSTED   QUEUE_FULL
        ├── QueueExpiredError        RESOURCE_EXHAUSTED   QUEUE_EXPIRED
        ├── SloUnreachableError      RESOURCE_EXHAUSTED   SLO_UNREACHABLE
        ├── SlowConsumerError        RESOURCE_EXHAUSTED   SLOW_CONSUMER
        ├── DeadlineError            DEADLINE_EXCEEDED    DEADLINE_PASSED
        │   └── DeadlineUnreachableError                  DEADLINE_UNREACHABLE
        ├── NoWorkerError            UNAVAILABLE          NO_WORKER
        ├── StoreLostError           UNAVAILABLE          STORE_LOST
        ├── LedgerLostError          UNAVAILABLE          LEDGER_LOST
        ├── GatewayLostError         UNAVAILABLE          GATEWAY_LOST
        ├── SchedulerLostError       UNAVAILABLE          SCHEDULER_LOST
        ├── WorkerLostError          UNAVAILABLE          WORKER_LOST
        ├── DrainingError            UNAVAILABLE          DRAINING
        ├── RevisionMismatchError    FAILED_PRECONDITION  REVISION_MISMATCH
        ├── SwitchedOffError         FAILED_PRECONDITION  SWITCHED_OFF
        ├── RequestCancelledError    CANCELLED            REQUEST_CANCELLED
        └── EngineFaultError         INTERNAL             ENGINE_FAULT

An error that cannot be expressed by one of these is a bug and surfaces as EngineFaultError.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import grpc


class TercetError(Exception):
    """Base of all errors this project raises on purpose."""


class StartupError(TercetError):
    """A service cannot start. The message says what is needed, what is there, and what to change."""


class ConfigError(StartupError):
    """A setting is wrong. `key` is its dotted name, such as ``worker.max_num_seqs``."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key


class StoreError(ConfigError):
    """The store of tenants cannot be read or written, or is of a newer version."""

    def __init__(self, problem: str) -> None:
        super().__init__("tenants.store", problem)


class LedgerError(ConfigError):
    """The ledger's database cannot be read or written, or is of a newer version."""

    def __init__(self, problem: str) -> None:
        super().__init__("ledger.database", problem)


class ModelError(StartupError):
    """Model files are missing, broken or unsupported."""


class TenantError(TercetError):
    """What is asked of a tenant cannot be done: it, or its key, is not there, or there already."""


class PlanFileError(TercetError):
    """A file is not what `tercet dump-plans` writes, or a part of it is missing."""


class LoadError(TercetError):
    """What `tercet bench` is to do cannot be done, or a file is not what it writes."""


class RequestError(TercetError):
    """One request failed. `retry_after_s`, if set, is when a retry may succeed, in seconds."""

    code: ClassVar[grpc.StatusCode]
    reason: ClassVar[str]

    def __init__(
        self, message: str, *, metadata: Mapping[str, str] | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    @property
    def retry_after_ms(self) -> int | None:
        """Rounded up, so that who asks then is not too early. Below a millionth of a millisecond is no part of one."""
        return None if self.retry_after_s is None else max(0, math.ceil(self.retry_after_s * 1000 - 1e-6))


class InvalidFieldError(RequestError):
    """A field of the request is wrong; `field` is its dotted proto name."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(
        self, message: str, *, field: str = "", metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        metadata = dict(metadata or {})
        if field:
            metadata["field"] = field
        super().__init__(message, metadata=metadata, retry_after_s=retry_after_s)


class PromptTooLongError(InvalidFieldError):
    """Prompt, or prompt + max_tokens, exceeds the model's context."""

    reason = "PROMPT_TOO_LONG"


class KvNeverFitsError(InvalidFieldError):
    """The request needs more KV blocks than any worker of its model has."""

    reason = "KV_NEVER_FITS"


class AnswerTooLargeError(InvalidFieldError):
    """The answer is to come in one piece, and would be larger than one may be; `field` is what makes it so large."""

    reason = "ANSWER_TOO_LARGE"


class UnauthenticatedError(RequestError):
    """The call has no key, or one that is not valid (any more). The text does not say which."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(RequestError):
    """The key is valid, but its tenant may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class ModelNotFoundError(RequestError):
    """No model of that name is served; metadata `served` lists the names."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "MODEL_NOT_FOUND"


class DuplicateRequestError(RequestError):
    """A request with this id is running."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "DUPLICATE_REQUEST"


class TenantQuotaError(RequestError):
    """The tenant has used up what its plan grants; metadata `quota` names the limit, such as ``tokens_per_minute``."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TENANT_QUOTA"


class QueueFullError(RequestError):
    """The queue's bound is reached."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"


class QueueExpiredError(RequestError):
    """The request waited for as long as its class lets one wait, and nothing of it was computed."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_EXPIRED"


class SloUnreachableError(RequestError):
    """The first token would come later than the request's class promises."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "SLO_UNREACHABLE"


class SlowConsumerError(RequestError):
    """The client reads more slowly than the bound of its stream allows."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "SLOW_CONSUMER"


class DeadlineError(RequestError):
    """The client's deadline passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_PASSED"


class DeadlineUnreachableError(DeadlineError):
    """The client's deadline will pass before the first token could come."""

    reason = "DEADLINE_UNREACHABLE"


class NoWorkerError(RequestError):
    """No live worker serves the model."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "NO_WORKER"


class StoreLostError(RequestError):
    """The gateway has not been able to read its tenants for so long that it no longer trusts what it knows of them."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "STORE_LOST"


class LedgerLostError(RequestError):
    """The gateway has not been able to write its ledger for so long that it has no room for another row."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "LEDGER_LOST"


class GatewayLostError(RequestError):
    """A client cannot reach the gateway, or lost it while the request ran. Raised by clients, never sent."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "GATEWAY_LOST"


class SchedulerLostError(RequestError):
    """The gateway has no stream to the scheduler, or lost it while the request ran."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "SCHEDULER_LOST"


class WorkerLostError(RequestError):
    """The worker that ran the request was lost."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "WORKER_LOST"


class DrainingError(RequestError):
    """The service is stopping and takes no new work."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"


class RevisionMismatchError(RequestError):
    """Gateway and workers were started with different files of the model."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "REVISION_MISMATCH"


class SwitchedOffError(RequestError):
    """The service was started without what is asked for; metadata `setting` is the key that turns it on, or `package`
    what has to be installed."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SWITCHED_OFF"


class RequestCancelledError(RequestError):
    """The request was cancelled by someone other than its client."""

    code = grpc.StatusCode.CANCELLED
    reason = "REQUEST_CANCELLED"


class EngineFaultError(RequestError):
    """A bug or a fault of a device. Never retried automatically."""

    code = grpc.StatusCode.INTERNAL
    reason = "ENGINE_FAULT"


@functools.cache
def request_error_types() -> Mapping[str, type[RequestError]]:
    """Every concrete RequestError by its reason."""
    found: dict[str, type[RequestError]] = {}
    pending = RequestError.__subclasses__()
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        found[cls.reason] = cls
    return found


def from_reason(
    reason: str, message: str, metadata: Mapping[str, str] | None = None, retry_after_s: float | None = None
) -> RequestError:
    """The error a peer sent as reason and variables; an unknown reason becomes EngineFaultError."""
    cls = request_error_types().get(reason)
    if cls is None:
        return EngineFaultError(message, metadata={**(metadata or {}), "unknown_reason": reason})
    return cls(message, metadata=metadata, retry_after_s=retry_after_s)
