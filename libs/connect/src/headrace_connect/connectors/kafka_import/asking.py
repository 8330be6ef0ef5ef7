"""What is asked of a Kafka cluster about topics and groups. Blocks: its caller has a thread for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as kafka
import confluent_kafka.admin

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.planning import is_copied
from headrace_connect.connectors.copying.port import SourceTopic
from headrace_connect.connectors.kafka_import.faults import HEARD, LOGIN, NO_GROUP, UNKNOWN, creation, fault_of
from headrace_connect.connectors.kafka_import.settings import ImportSettings

kafka_admin: Final[Any] = confluent_kafka.admin
"""Its types are half of the truth."""
QUIET: Final = logging.getLogger("headrace_connect.kafka")
_SET: Final = kafka_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
_GRACE_S: Final = 1.0
"""The client ends a call by itself after its time; a future is waited for so much longer."""


class Asking:
    """An admin client. All calls raise ``RetriableError``, and ``SourceRefuses`` among them."""

    def __init__(self, settings: ImportSettings) -> None:
        """
        Raises:
            InvalidConfig: a property of the client is wrong.
        """
        self._settings = settings
        self._limit_s = settings.timeout_ms / 1_000
        self.heard: Any = None
        """What was last said of connections, until somebody answers."""
        with creation(settings):
            self._admin = kafka_admin.AdminClient({**settings.of_client(), "error_cb": self.hear}, logger=QUIET)

    def hear(self, error: Any) -> None:
        """Called by clients of this cluster."""
        if error.code() in HEARD and (self.heard is None or self.heard.code() not in LOGIN):
            self.heard = error

    def fault(self, error: Any, what: str = "") -> Exception:
        """What ``error`` means."""
        return fault_of(error, what, self._settings.source_cluster_bootstrap_servers, self.heard)

    @contextmanager
    def asking(self, what: str = "") -> Iterator[None]:
        """Around any call of a client of this cluster."""
        try:
            yield
        except kafka.KafkaException as error:
            self._admin.poll(0)  # it may say why
            raise self.fault(error.args[0], what) from error
        self.heard = None

    def _each(self, futures: Mapping[Any, Any], name_of: Callable[[Any], str]) -> Iterator[tuple[str, Any]]:
        """Name and answer; what does not exist is left out."""
        for key, future in futures.items():
            name = name_of(key)
            with self.asking(name):
                try:
                    answer = future.result(self._limit_s + _GRACE_S)
                except kafka.KafkaException as error:
                    if error.args[0].code() not in UNKNOWN:
                        raise
                    continue
            yield name, answer

    # --- topics -------------------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        """Which cluster it is."""
        with self.asking():
            return str(self._admin.list_topics(timeout=self._limit_s).cluster_id)

    def topics(self) -> dict[str, SourceTopic]:
        """All that are not internal; settings only of those that are copied."""
        with self.asking():
            names = list(self._admin.list_topics(timeout=self._limit_s).topics)
        described = self.describe(names)
        copied = [name for name in described if is_copied(name, self._settings)]
        configs = self._configs(copied) if self._settings.sync_topic_configs_enabled else {}
        return {name: SourceTopic(id, count, configs.get(name, {})) for name, (id, count) in described.items()}

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """What was set for topics themselves."""
        if not names:
            return {}
        asked = [kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(asked, request_timeout=self._limit_s)
        return {
            name: {key: one.value for key, one in answer.items() if one.source == _SET and one.value is not None}
            for name, answer in self._each(futures, lambda resource: str(resource.name))
        }

    def describe(self, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Ids and numbers of partitions of those that exist and are not internal."""
        asked = list(names)
        if not asked:
            return {}
        futures = self._admin.describe_topics(kafka.TopicCollection(asked), request_timeout=self._limit_s)
        return {
            name: (str(answer.topic_id), len(answer.partitions))
            for name, answer in self._each(futures, str)
            if not answer.is_internal
        }

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Behind the last committed records; of partitions that exist."""
        if not partitions:
            return {}
        asked = {kafka.TopicPartition(*at): kafka_admin.OffsetSpec.latest() for at in partitions}
        futures = self._admin.list_offsets(
            asked, isolation_level=kafka.IsolationLevel.READ_COMMITTED, request_timeout=self._limit_s
        )
        by_name = {str(at): at for at in partitions}
        named = self._each(futures, lambda one: str(TopicPartition(one.topic, one.partition)))
        return {by_name[name]: answer.offset for name, answer in named}

    # --- groups -------------------------------------------------------------------------------------------------------

    def group_members(self, group: str) -> int:
        """Of a group of any protocol; 0 also where there is no such group."""
        [future] = self._admin.describe_consumer_groups([group], request_timeout=self._limit_s).values()
        with self.asking(group):
            try:
                return len(future.result(self._limit_s + _GRACE_S).members)
            except kafka.KafkaException as error:
                if error.args[0].code() != NO_GROUP:
                    raise
                return 0

    def group_positions(self, group: str) -> dict[TopicPartition, int]:
        """What the group has committed; waits for transactions that commit positions."""
        asked = [kafka.ConsumerGroupTopicPartitions(group)]
        [future] = self._admin.list_consumer_group_offsets(
            asked, require_stable=True, request_timeout=self._limit_s
        ).values()
        with self.asking(group):
            try:
                committed = future.result(self._limit_s + _GRACE_S).topic_partitions
            except kafka.KafkaException as error:
                if error.args[0].code() != NO_GROUP:
                    raise
                return {}
        return {TopicPartition(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}
