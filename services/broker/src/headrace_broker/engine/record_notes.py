"""
Who reads and writes records of topics with ``audit.access``: what produce and fetch streams tell the audit.

Nothing waits for it. While no topic is set so, a request costs two comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace_broker.engine.replicas import Replicas
from headrace_common.core.ids import TopicId
from headrace_common.core.image import Topic
from headrace_common.runtime.auditing import RecordTeller

SETTING: Final = "audit.access"
READ: Final = "read"
WRITE: Final = "write"


class NotedTopics:
    """The topics of the newest image that are set so, for one of ``READ`` and ``WRITE``. One for the broker."""

    def __init__(self, replicas: Replicas, word: str) -> None:
        self._replicas = replicas
        self._word = word
        self._of: Mapping[TopicId, Topic] | None = None
        self._names: dict[TopicId, str] = {}

    @property
    def names(self) -> Mapping[TopicId, str]:
        """By their ids."""
        topics = self._replicas.image.topics
        if topics is not self._of:
            self._of = topics
            self._names = {
                id: topic.name for id, topic in topics.items() if self._word in topic.configs.get(SETTING, "")
            }
        return self._names


class RecordNotes:
    """Of one stream."""

    def __init__(self, topics: NotedTopics, tell: RecordTeller) -> None:
        self._topics = topics
        self._tell = tell

    @property
    def wanted(self) -> bool:
        """Whether anything may have to be told."""
        return bool(self._topics.names)

    def take(self, topics: Iterable[TopicId]) -> None:
        """A request has read or written records of these, one or more times each."""
        names = self._topics.names
        for topic_id in dict.fromkeys(topics):
            name = names.get(topic_id)
            if name is not None:
                self._tell(name)
