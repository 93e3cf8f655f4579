"""Which service calls: its certificate says so, and only one kind may call each other kind."""

from __future__ import annotations

import grpc.aio

from tercet import errors

_DOMAIN = "tercet.internal"


def name_of(service: str) -> str:
    """The DNS name by which a certificate is that of a gateway, scheduler or worker, wherever it runs."""
    return f"{service}.{_DOMAIN}"


def check_caller(names: tuple[str, ...], context: grpc.aio.ServicerContext) -> None:
    """Raises errors.PermissionDeniedError if the caller's certificate has none of these names. That it is the caller's,
    and of the mesh's CA, the connection has made sure."""
    shown = context.auth_context().get("x509_subject_alternative_name", ())
    if not any(name.encode() in shown for name in names):
        raise errors.PermissionDeniedError(f"only {' and '.join(names)} may call this service")
