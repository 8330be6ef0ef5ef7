"""
What the status topic says: how connectors and tasks are, what there is to do, which topics are used.

All workers write it, so a worker that lost an item may still say something of it. Each record has the epoch of its
writer's item: one with a lower epoch than is known counts for nothing, and whoever has the item writes its own again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from headrace_connect_worker.core.records import Status, StatusRecord, TopicUsed, Work

Place: TypeAlias = tuple[str, int | None]
"""A connector (None), or one of its tasks."""


class Statuses:
    """See the module's text."""

    def __init__(self) -> None:
        self._statuses: dict[str, dict[int | None, Status]] = {}
        self._works: dict[str, Work] = {}
        self._topics: dict[str, dict[str, TopicUsed]] = {}
        self.revision = 0
        """Grows with everything that the leader has to look at: work, new places, fenced generations."""

    def apply(self, record: StatusRecord) -> bool:
        """Take in a record; whether it counts. One that does not is out of date."""
        match record:
            case Status():
                return self._take_status(record)
            case Work():
                return self._take_work(record)
            case TopicUsed(name, topic, task):
                self.revision += topic not in self.topics(name)
                topics = self._topics.setdefault(name, {})
                if task < 0:
                    topics.pop(topic, None)
                else:
                    topics[topic] = record
                if not topics:
                    del self._topics[name]
                return True

    def _take_status(self, record: Status) -> bool:
        known = self._statuses.get(record.name, {}).get(record.task)
        if record.state is None:
            if known is not None:
                del self._statuses[record.name][record.task]
                if not self._statuses[record.name]:
                    del self._statuses[record.name]
            return True
        if known is not None and known.epoch > record.epoch:
            return False
        self.revision += known is None or record.fenced != known.fenced
        self._statuses.setdefault(record.name, {})[record.task] = record
        return True

    def _take_work(self, record: Work) -> bool:
        if not record.kind:
            self._works.pop(record.name, None)
            return True
        known = self._works.get(record.name)
        if known is not None and known.epoch > record.epoch:
            return False
        self.revision += known is None or replace(known, epoch=record.epoch, worker_id=record.worker_id) != record
        self._works[record.name] = record
        return True

    def connector(self, name: str) -> Status | None:
        """How a connector is; None: nobody has said."""
        return self._statuses.get(name, {}).get(None)

    def task(self, name: str, task: int) -> Status | None:
        """How a task is; None: nobody has said."""
        return self._statuses.get(name, {}).get(task)

    def work(self, name: str) -> Work | None:
        """What a connector's watcher has found."""
        return self._works.get(name)

    def topics(self, name: str) -> Mapping[str, TopicUsed]:
        """The topics that a connector has used since they were reset, by name."""
        return self._topics.get(name, {})

    def fenced(self, name: str, generation: int) -> bool:
        """Whether a task of this generation was fenced by somebody else."""
        return any(status.fenced == generation for status in self._statuses.get(name, {}).values())

    def leftovers(self, tasks: Mapping[str, int]) -> Iterable[StatusRecord]:
        """
        Records that delete what is said of connectors and tasks that there are no more.

        Args:
            tasks: how many each connector has.
        """
        for name, statuses in self._statuses.items():
            count = tasks.get(name)
            for task in statuses:
                if count is None or (task is not None and task >= count):
                    yield Status(name, task, None)
        for name in self._works.keys() - tasks.keys():
            yield Work(name, "")
        for name in self._topics.keys() - tasks.keys():
            yield from (TopicUsed(name, topic, -1) for topic in self._topics[name])
