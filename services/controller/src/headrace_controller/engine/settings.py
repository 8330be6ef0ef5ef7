"""Changes of dynamic settings of topics and brokers, for one term of the active controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_common.core.access.resources import CLUSTER_NAME, ResourceType
from headrace_common.core.errors import unknown_topic
from headrace_common.core.image import Topic
from headrace_common.runtime.auditing import tell_change
from headrace_common.runtime.logs import logger
from headrace_controller.core import election, records
from headrace_controller.core.internal_topics import internal_changes
from headrace_controller.core.records import Configs
from headrace_controller.core.settings import (
    Alteration,
    BrokerResource,
    Entry,
    Resource,
    TopicResource,
    alter,
    check_topics_of,
    describe,
)
from headrace_controller.core.store import Put, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.settling import Settling
from headrace_controller.engine.writer import Decision, Writer

log = logger(__name__)


class Settings:
    """Settings during one term."""

    def __init__(self, writer: Writer, follower: Follower, settling: Settling) -> None:
        self._writer = writer
        self._follower = follower
        self._settling = settling

    async def alter(self, resource: Resource, changes: Sequence[Alteration], *, validate_only: bool) -> list[Entry]:
        """
        Apply all changes to one resource, or none; its settings afterwards.

        Raises:
            InvalidConfig, NotFound, InvalidTopic: nothing was changed.
            HeadraceError: as ``Writer.decide``.
        """
        describe(self._follower.mirror.image, resource)
        match resource:
            case TopicResource(name):
                return await self._alter_topic(name, changes, validate_only=validate_only)
            case BrokerResource():
                return await self._alter_broker(resource, changes, validate_only=validate_only)

    async def _alter_topic(self, name: str, changes: Sequence[Alteration], *, validate_only: bool) -> list[Entry]:
        new = self._topic(name, changes)
        if validate_only:
            image = self._follower.mirror.image
            planned = replace(image, topics={**image.topics, new.topic_id: new})
            return describe(planned, TopicResource(name))

        def decision() -> Decision:
            key = records.topic_key(name)
            write = Put(key, records.encode(self._topic(name, changes)))
            return Decision((write,), (Unchanged(key, self._follower.mirror.mod_revision(key)),))

        old = self._follower.mirror.image.topic(name)
        before = {} if old is None else old.configs
        if old is not None and _min_isr(old) != _min_isr(new):
            async with self._settling.turn:  # held until the new value stands, so that nobody becomes eligible between
                partitions = self._follower.mirror.image.partitions_of(old)
                await self._settling.bring(partitions, election.with_cleared_elr)
                await self._writer.decide(decision)
        else:
            await self._writer.decide(decision)
        tell_change(ResourceType.TOPIC, name, before, new.configs)
        log.info("topic settings changed", extra={"topic": name, "settings": sorted(c.name for c in changes)})
        return describe(self._follower.mirror.image, TopicResource(name))

    async def _alter_broker(
        self, resource: BrokerResource, changes: Sequence[Alteration], *, validate_only: bool
    ) -> list[Entry]:
        key = records.configs_key(resource.id)

        def values() -> dict[str, str]:
            image = self._follower.mirror.image
            if resource.id is not None:
                own, level = image.broker_configs.get(resource.id, {}), image.feature_level
                return alter(resource, own, changes, image.cluster_configs, level)
            cluster = alter(resource, image.cluster_configs, changes, {}, image.feature_level)
            check_topics_of(image, cluster)
            return cluster

        def decision() -> Decision:
            write = Put(key, records.encode(Configs(resource.id, values())))
            return Decision((write,), (Unchanged(key, self._follower.mirror.mod_revision(key)),))

        if validate_only:
            image = self._follower.mirror.image
            if resource.id is None:
                return describe(replace(image, cluster_configs=values()), resource)
            configs = {**image.broker_configs, resource.id: values()}
            return describe(replace(image, broker_configs=configs), resource)
        image = self._follower.mirror.image
        before = image.cluster_configs if resource.id is None else image.broker_configs.get(resource.id, {})
        after = values()
        await self._writer.decide(decision)
        tell_change(
            ResourceType.CLUSTER, CLUSTER_NAME if resource.id is None else f"broker {resource.id}", before, after
        )
        whose = "all" if resource.id is None else resource.id
        log.info("broker settings changed", extra={"broker": whose, "settings": sorted(c.name for c in changes)})
        return describe(self._follower.mirror.image, resource)

    def _topic(self, name: str, changes: Sequence[Alteration]) -> Topic:
        image = self._follower.mirror.image
        topic = image.topic(name)
        if topic is None:
            raise unknown_topic(name)
        if topic.internal:
            changes = internal_changes(topic, changes, image)
        resource, level = TopicResource(name), image.feature_level
        return replace(topic, configs=alter(resource, topic.configs, changes, image.cluster_configs, level))


def _min_isr(topic: Topic) -> str | None:
    return topic.configs.get("min.insync.replicas")
