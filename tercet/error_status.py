"""The one mapping of typed errors to statuses of gRPC, and back."""

from __future__ import annotations

from typing import TypeAlias

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from tercet import errors

DOMAIN = "tercet"

# Proxies and clients drop trailers somewhere above 8 KB; stay well under.
MAX_DETAIL_BYTES = 4096
_MAX_TEXT_BYTES = 1024
_MAX_VARIABLE_BYTES = 256

_Detail: TypeAlias = error_details_pb2.BadRequest | error_details_pb2.ResourceInfo | error_details_pb2.QuotaFailure


def to_status(error: errors.RequestError) -> status_pb2.Status:
    """The google.rpc.Status of an error: one ErrorInfo always, every detail type at most once, under 4 KB."""
    message = _clip(error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in error.metadata.items():
        info.metadata[_clip(key, _MAX_VARIABLE_BYTES)] = _clip(value, _MAX_VARIABLE_BYTES)
    details = [_pack(info)]
    if error.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    details += [_pack(detail) for detail in _details(error)]
    status = status_pb2.Status(code=error.code.value[0], message=message, details=details)
    while status.ByteSize() > MAX_DETAIL_BYTES and len(status.details) > 1:
        del status.details[-1]
    while status.ByteSize() > MAX_DETAIL_BYTES and info.metadata:
        # More variables than fit: the reason is what clients decide by.
        del info.metadata[max(info.metadata, key=lambda key: len(info.metadata[key]))]
        status.details[0].CopyFrom(_pack(info))
    return status


def from_status(status: status_pb2.Status) -> errors.RequestError | None:
    """The error that `to_status` put on the wire; None if the status has no ErrorInfo of this project."""
    info: error_details_pb2.ErrorInfo | None = None
    retry_after_s: float | None = None
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    if info is None or info.domain != DOMAIN:
        return None
    return errors.from_reason(info.reason, status.message, dict(info.metadata), retry_after_s)


def _details(error: errors.RequestError) -> list[_Detail]:
    """Further google.rpc details besides ErrorInfo and RetryInfo; each type at most once."""
    if isinstance(error, errors.InvalidFieldError):
        field = error_details_pb2.BadRequest.FieldViolation(
            field=error.metadata.get("field", ""), description=_clip(error.message)
        )
        return [error_details_pb2.BadRequest(field_violations=[field])]
    if isinstance(error, errors.ModelNotFoundError):
        name = _clip(error.metadata.get("model", ""))
        return [error_details_pb2.ResourceInfo(resource_type="tercet.v1.Model", resource_name=name)]
    if isinstance(error, errors.TenantQuotaError):
        quota = error_details_pb2.QuotaFailure.Violation(
            subject=_clip(f"tenant:{error.metadata.get('tenant', '')}"), description=_clip(error.message)
        )
        return [error_details_pb2.QuotaFailure(violations=[quota])]
    return []


def _pack(detail: object) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)  # type: ignore[arg-type]
    return packed


def _clip(text: str, limit: int = _MAX_TEXT_BYTES) -> str:
    """`text` as at most `limit` bytes of UTF-8; what UTF-8 cannot hold is replaced."""
    data = text.encode("utf-8", "replace")
    ellipsis = "…"
    if len(data) <= limit:
        return data.decode()
    return data[: limit - len(ellipsis.encode())].decode("utf-8", "ignore") + ellipsis
