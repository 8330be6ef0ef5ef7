"""Of the port ``Cluster`` what brokers are found by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Role


class Known:
    """An image that knows brokers by their addresses, for a test to change. It never hears of a newer one."""

    def __init__(self, brokers: Mapping[NodeId, Endpoint]) -> None:
        nodes = [Node(NodeKey(Role.BROKER, broker), at, bytes(16), 1) for broker, at in brokers.items()]
        self.image: ClusterImage = replace(EMPTY_IMAGE, nodes={node.key: node for node in nodes})

    async def newer(self, revision: int, timeout_ms: float) -> ClusterImage:
        """See ``Cluster``."""
        return self.image

    async def caught_up(self, timeout_ms: float) -> ClusterImage:
        """See ``Cluster``."""
        return self.image
