"""Raises the cluster's feature level, for one term of the active controller. It compares, it does not remember."""

from __future__ import annotations

from typing import Final

from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.rising import raise_level
from headrace_controller.core.store import Put, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import Decision, Writer

_COMPARED: Final = (records.CLUSTER_KEY, records.EPOCH_KEY)
"""The second is written with every registration: one with a lower level, made meanwhile, is seen."""

log = logger(__name__)


class Features:
    """The cluster's feature level during one term."""

    def __init__(self, writer: Writer, follower: Follower) -> None:
        self._writer = writer
        self._follower = follower

    async def rise(self) -> None:
        """
        Raise the level as far as all registered nodes know it; nothing happens where it is there already.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        if await self._writer.decide(self._decision):
            level = self._follower.mirror.image.feature_level
            log.info("the cluster has risen to a new feature level", extra={"level": level})

    def _decision(self) -> Decision | None:
        mirror = self._follower.mirror
        cluster = raise_level(mirror)
        if cluster is None:
            return None
        return Decision(
            (Put(records.CLUSTER_KEY, records.encode(cluster)),),
            tuple(Unchanged(key, mirror.mod_revision(key)) for key in _COMPARED),
        )
