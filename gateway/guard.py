"""Whom a call's key stands for, and whether it may make the call. Knows no requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import grpc.aio

from tercet.errors import PermissionDeniedError, RequestError, StoreLostError, UnauthenticatedError
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.tenants.api_key import ApiKey, read_key

from .caller import ANYONE, Caller
from .tenant_watch import TenantWatch

# Of HTTP, or the metadata of gRPC; names in lower case.
Headers = Iterable[tuple[str, str | bytes]]

_HEADER = "authorization"
_SCHEME = "bearer"
# It has a digest to compare, so that a call without a key takes as long to refuse as one with a wrong one.
_NO_KEY = ApiKey("", "")


class Guard:
    """Checks the key of each call against the tenants as last read. Without tenants everyone is ANYONE.

    `clock` gives seconds since the epoch; `note` is told of each refusal of somebody who is not known. What has expired
    stays so when the clock is set back: the latest time that was seen counts, and that of the last change in the store.
    """

    def __init__(
        self,
        tenants: TenantWatch | None,
        clock: Callable[[], float] = time.time,
        note: Callable[[RequestError], None] = lambda _: None,
    ) -> None:
        self._tenants = tenants
        self._clock = clock
        self._note = note
        self._latest = 0.0

    def caller(self, context: grpc.aio.ServicerContext) -> Caller:
        """Who calls, over gRPC; raises as `caller_of`."""
        return self.caller_of(() if self._tenants is None else context.invocation_metadata() or ())

    def caller_of(self, headers: Headers) -> Caller:
        """Who calls, by names and values that came with the call. Raises UnauthenticatedError, the same one whatever is
        wrong with the key, and StoreLostError while nobody knows which keys are right."""
        try:
            return ANYONE if self._tenants is None else self._caller(self._tenants, headers)
        except RequestError as error:
            self._note(error)
            raise

    def _caller(self, tenants: TenantWatch, headers: Headers) -> Caller:
        if tenants.stale:
            raise StoreLostError(
                "the gateway has not been able to read its tenants for too long",
                retry_after_s=UNKNOWN_RETRY_SECONDS,
            )
        directory = tenants.directory
        self._latest = max(self._latest, self._clock(), directory.changed_at)
        key = directory.find(_given(headers) or _NO_KEY, self._latest)
        if key is None:
            raise _unauthenticated()
        plan = directory.tenants[key.tenant].plan
        return Caller(key.tenant, key.id, key.operator, directory.salt_key(key.tenant), plan)

    def operator(self, context: grpc.aio.ServicerContext) -> Caller:
        """Who calls, if an operator; as `caller`, and PermissionDeniedError for others."""
        return operator_only(self.caller(context))


def operator_only(caller: Caller) -> Caller:
    """The same caller. Raises PermissionDeniedError for one that is no operator."""
    if not caller.operator:
        raise PermissionDeniedError("this call needs the key of an operator")
    return caller


def _given(headers: Headers) -> ApiKey | None:
    """The key in a call's headers; None without one, with several, or with something else."""
    values = [value for name, value in headers if name == _HEADER]
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    scheme, _, text = values[0].partition(" ")
    return read_key(text.strip()) if scheme.lower() == _SCHEME else None


def _unauthenticated() -> RequestError:
    return UnauthenticatedError("this call needs a valid key, as metadata `authorization: Bearer KEY`")
