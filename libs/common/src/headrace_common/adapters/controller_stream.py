"""Keeps the cluster image by the metadata stream of a controller. Used by the controller client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headrace_common.adapters.controller_calls import ControllerCalls
from headrace_common.core.errors import DuplicateRegistration, HeadraceError, NetworkFailed
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, ImageGap, ImageStale, NodeKey
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.convert import node_key_to_proto
from headrace_common.rpc.convert_delta import delta_from_proto
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.tasks import first_of
from headrace_proto.v1 import controller_pb2 as pb

_WATCH_PAUSE_MS_MAX: Final = 2_000.0

_log = logging.getLogger(__name__)


class MetadataStream:
    """``on_image`` is called with each new image; what it raises ends ``follow``."""

    def __init__(
        self, calls: ControllerCalls, key: NodeKey, clock: Clock, on_image: Callable[[ClusterImage], None]
    ) -> None:
        self.image = EMPTY_IMAGE
        """The newest; empty (revision 0) until the first snapshot came."""
        self._calls = calls
        self._key = key
        self._clock = clock
        self._on_image = on_image
        self._watched: Endpoint | None = None
        self._switch = asyncio.Event()

    def prefer(self, controller: Endpoint) -> None:
        """This one answers heartbeats: follow it, and not another."""
        if self._watched not in (None, controller):
            self._switch.set()

    async def follow(self) -> None:
        """
        Keep the image: a snapshot, then deltas; whatever breaks, begin again elsewhere after a bounded pause.

        It follows the controller that answers heartbeats: another one may be cut off from the metadata store, and its
        stream then stays open and silent.
        """
        failures = 0
        while True:
            self._watched = target = self._calls.route.target()
            self._switch.clear()
            before = self.image.revision
            error: Exception = NetworkFailed("the controller ended the stream")
            try:
                await first_of(self._watch(target), self._switch.wait())
            except DuplicateRegistration:
                raise
            except (HeadraceError, ImageGap, ImageStale) as broke:
                error = broke
            if self._switch.is_set():
                continue
            self._calls.route.failed(target)
            await self._calls.forget_unknown(target, error)
            failures = 1 if self.image.revision > before else failures + 1
            level = logging.WARNING if isinstance(error, ImageStale) else logging.INFO
            _log.log(level, "metadata stream broke: %s", error, extra={"peer": str(target), "failures": failures})
            self._watched = None
            await self._clock.sleep_ms(backoff_ms(failures, ms_max=_WATCH_PAUSE_MS_MAX))

    async def _watch(self, target: Endpoint) -> None:
        request = pb.WatchMetadataRequest(node=node_key_to_proto(self._key))
        with CallTo(target):
            async for update in self._calls.stub(target).WatchMetadata(request):
                self.image = self.image.apply(delta_from_proto(update))
                self._on_image(self.image)
                await self._calls.keep(self._controllers() | {target})

    def _controllers(self) -> frozenset[Endpoint]:
        """Where controllers may be: as the route knows it, and the active one as the image does."""
        active = self.image.active_controller
        named = () if active is None or active.grpc is None else (active.grpc,)
        return self._calls.route.addresses.union(named)
