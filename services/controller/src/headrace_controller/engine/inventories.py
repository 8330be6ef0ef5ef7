"""Asks brokers, all side by side, what they have on their disks; for a restore, and for stray topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, TopicId
from headrace_common.core.image import ClusterImage, Node
from headrace_common.runtime.logs import logger
from headrace_controller.core.held import Inventory
from headrace_controller.ports import InventorySource

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What brokers said, and which processes said it."""

    inventories: Mapping[NodeId, Inventory]
    epochs: Mapping[NodeId, int]
    """Registrations of those that answered."""
    silent: tuple[NodeId, ...]
    """Those that did not, ascending."""

    def still_hold(self, image: ClusterImage) -> bool:
        """Whether those that answered are the processes that are registered, and live: their disks are as they said."""
        now = {n.key.id: n.epoch for n in image.brokers() if not n.fenced}
        return all(now.get(broker) == epoch for broker, epoch in self.epochs.items())


async def ask(source: InventorySource, nodes: Iterable[Node], topic_ids: Sequence[TopicId] = ()) -> Asked:
    """Ask all of ``nodes`` for these topics, or for everything."""
    wanted = sorted(nodes, key=lambda n: n.key.id)
    answers = await asyncio.gather(*(_one(source, node, topic_ids) for node in wanted))
    pairs = list(zip(wanted, answers, strict=True))
    return Asked(
        inventories={n.key.id: answer for n, answer in pairs if answer is not None},
        epochs={n.key.id: n.epoch for n, answer in pairs if answer is not None},
        silent=tuple(n.key.id for n, answer in pairs if answer is None),
    )


async def _one(source: InventorySource, node: Node, topic_ids: Sequence[TopicId]) -> Inventory | None:
    try:
        return await source.inventory(node, topic_ids)
    except HeadraceError as error:
        log.warning("a broker does not say what it has", extra={"peer": str(node.key), "reason": str(error)})
        return None
