"""
Follows the metadata store: one list, then a watch, for ever; feeds the mirror and the image's watchers.

Every controller runs one, active or not. It is the only writer of the mirror. When the store is away the last image
stays; when its history was compacted it lists again and publishes the difference; when the store went back in time
it keeps what it has and says so, until the metadata's incarnation changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headrace_common.core.access.rows import Reader, View
from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.features import HIGHEST
from headrace_common.core.image import ImageDelta
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.mirror import Mirror
from headrace_controller.core.store import Listing
from headrace_controller.engine.feed import Feed
from headrace_controller.engine.waiting import event_within
from headrace_controller.ports import HistoryCompacted, HistoryRewound, MetadataStore, StoreUnavailable

_REWOUND_RETRY_MS: Final = 2_000
_RETRY_MS_MAX: Final = 300
"""Nothing is decided while the store is away; one small read several times a second costs it little."""

log = logger(__name__)


class Follower:
    """The mirror, kept up to date by ``run``."""

    def __init__(self, store: MetadataStore, feed: Feed, clock: Clock, feature_level_max: int = HIGHEST) -> None:
        self.mirror = Mirror(feature_level_max)
        self.reachable = False
        """Whether the store has answered: since the list, and while the watch stands."""
        self.on_step: Callable[[ImageDelta], None] = lambda _: None
        """Called after each step of the image, on the follower's task; must not block."""
        self.on_image: Callable[[], None] = lambda: None
        """Called after each step, too, for as long as the process lives; must not block."""
        self.reader = Reader()
        """Of the rows of access in the image."""
        self._store = store
        self._feed = feed
        self._clock = clock
        self._listed = False
        self._moved = asyncio.Event()

    @property
    def access(self) -> View:
        """Who may do what, by the rows of the image."""
        image = self.mirror.image
        return self.reader.read(image.access, image.access_step)

    async def run(self) -> None:
        """
        Follow until cancelled.

        Raises:
            UnsupportedVersion: the metadata was written by a newer version; this process must not go on.
        """
        failures = 0
        while True:
            before = self.mirror.revision
            try:
                await self._follow()
            except HistoryCompacted as error:
                log.warning("listing the metadata again", extra={"reason": str(error)})
                self._listed = False
                failures = 0
            except HistoryRewound as error:
                log.error("the metadata store lost changes; the last image is kept", extra={"reason": str(error)})
                self._listed = False
                await self._clock.sleep_ms(_REWOUND_RETRY_MS)
            except StoreUnavailable as error:
                if self.reachable or not failures:
                    log.warning("the metadata store cannot be reached", extra={"reason": str(error)})
                failures = 1 if self.mirror.revision > before else failures + 1
                self.reachable = False
                await self._clock.sleep_ms(backoff_ms(failures, ms_max=_RETRY_MS_MAX))
            self.reachable = False

    async def wait_for_revision(self, revision: int, timeout_ms: int) -> None:
        """
        Wait until the mirror has a change at or after ``revision``.

        Raises:
            MetadataUnavailable: it did not come in time; the change itself may have happened.
        """
        await self.until(lambda: self.mirror.revision >= revision, timeout_ms)

    async def until(self, holds: Callable[[], bool], timeout_ms: int | None = None) -> None:
        """
        Wait until ``holds``, looked at after each change of the mirror.

        Raises:
            MetadataUnavailable: not within ``timeout_ms``.
        """
        if timeout_ms is None:
            while not holds():
                await self._moved.wait()
            return
        until_ms = self._clock.monotonic_ms() + timeout_ms
        while not holds():
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or not (await event_within(self._moved, self._clock, left_ms) or holds()):
                raise MetadataUnavailable(
                    "the metadata store tells of no changes; this one may have happened, look before repeating it"
                )

    async def _follow(self) -> None:
        away = not self.reachable
        if not self._listed:
            listing = await self._store.list_all()
            self._refuse_older(listing)
            self.reachable = True  # before the image is there to be asked for: whoever has seen it may ask for more
            self._publish(self.mirror.load(listing))
            self._listed = True
        async with self._store.watch(self.mirror.revision + 1) as batches:
            if away:
                log.info("following the metadata store", extra={"revision": self.mirror.revision})
            self.reachable = True
            async for batch in batches:
                if self.mirror.replaced_by(batch):
                    log.warning("the metadata was restored from a backup")
                    self._listed = False
                    return
                self._publish(self.mirror.apply(batch))

    def _refuse_older(self, listing: Listing) -> None:
        if listing.revision >= self.mirror.revision:
            return
        found = next((i for i in listing.items if i.key == records.CLUSTER_KEY), None)
        cluster = None if found is None else records.decode(found.key, found.value)
        if isinstance(cluster, records.Cluster) and cluster.incarnation != self.mirror.image.incarnation:
            log.warning("the metadata was restored", extra={"incarnation": cluster.incarnation})
            return
        raise HistoryRewound(f"the store is at revision {listing.revision}, {self.mirror.revision} was seen")

    def _publish(self, step: ImageDelta | None) -> None:
        if step is not None:
            self._feed.publish(self.mirror.image, step)
            self.on_step(step)
            self.on_image()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
