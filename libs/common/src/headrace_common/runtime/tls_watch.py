"""
Looks at the certificates of a process again and again, and hands new ones on.

Files change beneath a running process: Kubernetes swaps the links of a Secret's volume, certificates live for days.
What is wrong is refused, said in the log and counted, and what was sound stays in use, even beyond its end: a process
never ends because of its certificates. Whoever uses a bundle takes each new one by ``takes``; who could not is given it
again at the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.metrics import Meter

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.served_certificates import Served
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.threads import run_in_thread
from headrace_common.runtime.tls import SAYS, Bundle, Wanted, read_bundle
from headrace_common.runtime.tls_config import TlsFiles

LOOK_EVERY_MS: Final = 10_000.0

Taker = Callable[[Bundle], Awaitable[None]]
"""Uses a new bundle from now on. Returns soon; raises ``OSError`` where it cannot, and goes on with the old one."""

_log = logging.getLogger(__name__)


class TlsMetrics:
    """What is measured of certificates; one for the process."""

    def __init__(self, meter: Meter) -> None:
        self._refused = meter.create_counter(
            "headrace_tls_refused", description="Looks at certificates that found files which cannot be used"
        )
        self._not_after = meter.create_gauge(
            "headrace_tls_not_after", unit="s", description="When the certificates in use end, since the epoch"
        )
        self._not_before = meter.create_gauge(
            "headrace_tls_not_before", unit="s", description="When those of headrace_tls_not_after began"
        )
        self._ca_not_after = meter.create_gauge(
            "headrace_tls_ca_not_after", unit="s", description="When the CA of the certificates ends, since the epoch"
        )

    def count_refused(self, name: str) -> None:
        self._refused.add(1, {"bundle": name})

    def show(self, name: str, bundle: Bundle) -> None:
        """That ``bundle`` is in use."""
        about = {"bundle": name}
        self._not_after.set(bundle.not_after.timestamp(), about)
        self._not_before.set(bundle.begins.timestamp(), about)
        self._ca_not_after.set(bundle.ca_not_after.timestamp(), about)


class LiveBundle:
    """The certificates of some files, as they were when they were last sound. For one event loop."""

    def __init__(self, name: str, files: TlsFiles, wanted: Wanted, clock: Clock, metrics: TlsMetrics) -> None:
        """
        Reads the files, as a process does that starts.

        Args:
            name: of the bundle in metrics and logs, such as ``internal``.

        Raises:
            InvalidConfig: they cannot be used.
        """
        self._name = name
        self._files = files
        self._wanted = wanted
        self._clock = clock
        self._metrics = metrics
        self._takers: dict[Taker, Bundle] = {}
        """Each with what it uses."""
        self._said: str | None = None
        self._refused = ""
        self._looking = asyncio.Lock()
        self.bundle = read_bundle(files, wanted, clock.now_ms())
        """The newest that was sound."""
        metrics.show(name, self.bundle)

    @contextmanager
    def takes(self, taker: Taker, using: Bundle) -> Iterator[None]:
        """While the block runs, ``taker``, which begins with ``using``, gets the newest bundle."""
        self._takers[taker] = using
        try:
            yield
        finally:
            del self._takers[taker]

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._clock.sleep_ms(LOOK_EVERY_MS)
            await self.look()

    async def look(self) -> None:
        """Read the files once, and hand a new bundle to all who lack it. One look at a time."""
        async with self._looking:
            await self._look()

    def served(self) -> Served:
        """What is in use, and what was refused at the last look."""
        bundle = self.bundle
        return Served(
            name=self._name,
            certificate=bundle.certificate,
            not_after_ms=int(bundle.not_after.timestamp() * 1_000),
            issuer=bundle.issuer,
            trusted=bundle.cas,
            trusted_more=len(bundle.trusted) - len(bundle.cas),
            refused=self._refused,
            behind=any(used is not bundle for used in self._takers.values()),
        )

    async def _look(self) -> None:
        try:
            bundle = await run_in_thread(read_bundle, self._files, self._wanted, self._clock.now_ms())
        except InvalidConfig as error:
            self._metrics.count_refused(self._name)
            self._refused = str(error)
            self._say(f"the certificates in use stay: {error}")
        else:
            self._said, self._refused = None, ""
            if bundle.pem != self.bundle.pem:
                self.bundle = bundle
                self._metrics.show(self._name, bundle)
                about = {"bundle": self._name, "fingerprint": bundle.fingerprint, "not_after": str(bundle.not_after)}
                _log.info("new certificates are in use", extra=about)
        await self._hand_on()

    async def _hand_on(self) -> None:
        newest = self.bundle
        for taker, used in list(self._takers.items()):
            if used is newest:
                continue
            try:
                await taker(newest)
            except OSError as error:
                _log.error("new certificates could not be taken, and will be again: %s", error)
                continue
            if taker in self._takers:
                self._takers[taker] = newest

    def _say(self, text: str) -> None:
        """Each cause once."""
        cause = text.partition(SAYS)[0]
        if cause != self._said:
            self._said = cause
            _log.error(text, extra={"bundle": self._name})
