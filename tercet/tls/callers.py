"""Which service calls: its certificate says so, and only one kind may call each other kind."""

from __future__ import annotations

import grpc.aio

from tercet import errors

_DOMAIN = "tercet.internal"


def name_of(service: str) -> str:
    """The DNS name by which a certificate is that of a gateway, scheduler or worker, wherever it runs."""
    return f"{service}.{_DOMAIN}"


def check_caller(name: str, context: grpc.aio.ServicerContext) -> None:
    """Raises errors.PermissionDeniedError if the caller's certificate has not this name. That it is the caller's, and
    of the mesh's CA, the connection has made sure."""
    if name.encode() not in context.auth_context().get("x509_subject_alternative_name", ()):
        raise errors.PermissionDeniedError(f"only {name} may call this service")
