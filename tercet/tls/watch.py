"""A certificate that is renewed while a service runs: its files are read again when they have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from tercet.errors import ConfigError

from .certificate import Certificate, End, read_certificate, stamp
from .settings import CertificateFiles

log = structlog.get_logger()

# Whoever has to renew a certificate by hand needs a few days, and hears of it daily.
WARN_BEFORE_S = 7 * 86_400
WARN_EVERY_S = 86_400
# How often files that could not be used are read again though nobody has changed them: they may be in force by now.
RETRY_S = 10.0


class CertificateWatch:
    """The newest certificate in the files that could be used. Any thread may ask.

    While files are half replaced, or wrong, the last good one stays. `clock` gives seconds since the epoch.
    """

    def __init__(self, files: CertificateFiles, end: End, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError, naming the setting, if there is none to begin with."""
        self._files = files
        self._end = end
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = stamp(files)
        self._certificate = read_certificate(files, end)
        # Why what is in the files now is not used, and when they were last read.
        self._unusable = ""
        self._read_at = clock()
        self._warn_at = 0.0

    def latest(self) -> Certificate:
        """Looks at the files, which takes microseconds unless they have changed."""
        with self._lock:
            seen = stamp(self._files)
            # A clock that was set back keeps nobody waiting.
            waits = 0.0 <= self._clock() - self._read_at < RETRY_S
            if seen != self._stamp or (self._unusable and not waits):
                self._stamp = seen
                self._read_at = self._clock()
                self._renew(seen)
            self._warn()
            return self._certificate

    @property
    def problem(self) -> str:
        """What is wrong with the files now, or with the certificate that is used instead; empty if nothing is. Names
        neither: the log does."""
        if self.latest().ends_at <= self._clock():
            return "its certificate has expired"
        return "its certificate files cannot be used" if self._unusable else ""

    def _renew(self, seen: tuple[object, ...]) -> None:
        try:
            found = read_certificate(self._files, self._end)
        except ConfigError as error:
            if str(error) != self._unusable:
                self._unusable = str(error)
                log.error("certificate_not_renewed", problem=self._unusable)
            return
        self._unusable = ""
        if stamp(self._files) == seen:
            self._certificate = found
            self._warn_at = 0.0
            log.info("certificate_renewed", file=self._files.certificate, names=found.names)

    def _warn(self) -> None:
        now = self._clock()
        if now >= self._warn_at and self._certificate.ends_at - now < WARN_BEFORE_S:
            self._warn_at = now + WARN_EVERY_S
            days = (self._certificate.ends_at - now) / 86_400
            log.warning("certificate_ends_soon", file=self._files.certificate, days=round(days, 1))
