"""The controller as the coordinator's engine sees it: ``Cluster`` and ``Revisions`` over the controller client."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.image import ClusterImage, ShardKind


class ControllerCluster:
    """See ``Cluster`` and ``Revisions``."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    @property
    def image(self) -> ClusterImage:
        return self._client.image

    def images(self) -> AsyncIterator[ClusterImage]:
        return self._client.images()

    async def newest_revision(self) -> int:
        """See ``Revisions``. The topic is there, since its shards are kept here; only the active one answers this."""
        return await self._client.ensure_internal_topic(ShardKind.TRANSACTIONS)

    @property
    def tenure_until_ms(self) -> float:
        client = self._client
        registered, contact = client.registered, client.contact_ms
        if registered is None or contact is None or client.fenced:
            return -math.inf
        node = client.image.nodes.get(client.key)
        if node is None or node.fenced or node.epoch != registered.epoch:
            return -math.inf  # the answer was faster than the image, and shards may have moved in between
        return contact + registered.session_timeout_ms
