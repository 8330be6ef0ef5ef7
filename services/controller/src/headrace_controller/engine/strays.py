"""What is known of a restore and of stray logs, and stray topics that are adopted by command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.ids import NodeId, TopicId
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_controller.core.held import by_partition, by_topic, tokens
from headrace_controller.core.restore_record import Restore
from headrace_controller.core.strays import Stray, plan_adoption, strays
from headrace_controller.engine.adoption import Adoption
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.inventories import ask
from headrace_controller.engine.settling import Settling
from headrace_controller.engine.topics import Described
from headrace_controller.engine.waiting import event_within
from headrace_controller.engine.writer import Changed
from headrace_controller.ports import InventorySource

_LEADERS_WAIT_MS = 2_000

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """How far the cluster is after its last restore."""

    restore: Restore | None
    missing: Sequence[NodeId]
    strays: Sequence[Stray] = ()
    silent: Sequence[NodeId] = ()


async def describe_restore(
    follower: Follower, source: InventorySource, silent: Sequence[NodeId], *, with_strays: bool
) -> RestoreStatus:
    """
    What the metadata says; and what brokers have beyond it, where that is asked for.

    Args:
        silent: brokers that an unfinished restore asked in vain, as far as this controller knows.
    """
    mirror = follower.mirror
    restore = mirror.restore
    missing = [] if restore is None or restore.finished else restore.list_missing(mirror.image)
    if not with_strays:
        return RestoreStatus(restore, missing, silent=silent)
    answers = await ask(source, mirror.image.brokers())
    return RestoreStatus(restore, missing, strays(mirror.image, answers.inventories), answers.silent)


class Strays:
    """Adoptions by command, for one term of the active controller."""

    def __init__(
        self, *, follower: Follower, settling: Settling, adoption: Adoption, source: InventorySource, clock: Clock
    ) -> None:
        self._follower = follower
        self._settling = settling
        self._adoption = adoption
        self._source = source
        self._clock = clock

    async def adopt(
        self, topic_id: TopicId, name: str | None, partition_count: int, *, validate_only: bool
    ) -> Described:
        """
        Make a topic of stray logs; the longest of them lead.

        Raises:
            MetadataUnavailable: a registered broker does not answer, and might have a longer log.
            HeadraceError: as ``plan_adoption`` and ``Writer.decide``.
        """
        mirror = self._follower.mirror
        answers = await ask(self._source, mirror.image.brokers(), [topic_id])
        if answers.silent:
            raise MetadataUnavailable(
                f"brokers {', '.join(map(str, answers.silent))} do not say what they have, and may have longer logs of "
                "this topic; start them, or unregister those that are gone for good"
            )

        def guard() -> None:
            if not answers.still_hold(mirror.image):
                raise Changed

        plan = plan_adoption(mirror.image, answers.inventories, topic_id, name, partition_count)
        if validate_only:
            return Described(plan.topic, plan.new)
        held = by_topic(by_partition(answers.inventories))[topic_id]
        try:
            async with self._settling.turn:
                await self._adoption.raise_epochs(tokens(plan.topic, held), guard)
                await self._adoption.write(plan, guard, ())
        except Changed:
            raise MetadataUnavailable(
                f"the brokers, or topic {plan.topic.name}, changed while stray logs were adopted; try again"
            ) from None
        log.warning("stray topic adopted", extra={"topic": plan.topic.name, "topic_id": topic_id.hex()})
        self._settling.topics_changed([topic_id])
        await event_within(self._settling.settled, self._clock, _LEADERS_WAIT_MS)
        return Described(plan.topic, mirror.image.partitions_of(plan.topic))
