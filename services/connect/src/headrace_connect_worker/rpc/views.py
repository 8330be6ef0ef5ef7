"""Reads what a worker knows of connectors, in the shapes of Kafka. Called by the routes; asks nobody."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from headrace_connect_worker.core.changes import shortage
from headrace_connect_worker.core.encoding import GENERATION, SPLITS
from headrace_connect_worker.core.herd import ConnectorState, HerdState, TaskSet
from headrace_connect_worker.core.records import RunState, Status
from headrace_connect_worker.core.refusals import NoSuchConnector
from headrace_connect_worker.core.status import Statuses
from headrace_connect_worker.rpc import kafka_shapes
from headrace_connect_worker.rpc.kafka_shapes import Json


class Views:
    """Of one moment."""

    def __init__(self, state: HerdState, statuses: Statuses) -> None:
        self._state = state
        self._statuses = statuses

    def find(self, name: str) -> ConnectorState:
        """
        Raises:
            NoSuchConnector: there is none.
        """
        found = self._state.connectors.get(name)
        if found is None:
            raise NoSuchConnector(f"Connector {name} not found")
        return found

    @property
    def names(self) -> list[str]:
        """Of all connectors, sorted."""
        return sorted(self._state.connectors)

    def kind(self, name: str) -> str:
        """``source`` or ``sink``; empty: its watcher has not said it yet."""
        work = self._statuses.work(name)
        return "" if work is None else work.kind

    def info(self, name: str, config: Mapping[str, str] | None = None, kind: str = "") -> Json:
        """
        Args:
            config: in the place of the one that was read.
            kind: where it is known from elsewhere.

        Raises:
            NoSuchConnector: there is none.
        """
        found = self.find(name)
        return kafka_shapes.connector_info(
            name, found.config if config is None else config, _count(found.tasks), kind or self.kind(name)
        )

    def status(self, name: str) -> Json:
        """
        Raises:
            NoSuchConnector: there is none, or nobody has said anything of it yet.
        """
        return self._status(name, {}, None)

    def has_status(self, name: str) -> bool:
        """Whether anybody has said yet how it is."""
        return self._statuses.connector(name) is not None

    def restarting(self, name: str, *, tasks: bool, only_failed: bool) -> Json:
        """
        ``status``, where what is to begin anew is ``RESTARTING`` already.

        Raises:
            NoSuchConnector: as there.
        """

        def chosen(status: Status | None) -> bool:
            return not only_failed or (status is not None and status.state in (RunState.FAILED, RunState.RESTARTING))

        count = range(_count(self.find(name).tasks))
        states = {task: RunState.RESTARTING for task in count if tasks and chosen(self._statuses.task(name, task))}
        connector = RunState.RESTARTING if chosen(self._statuses.connector(name)) else None
        return self._status(name, states, connector)

    def task_status(self, name: str, task: int) -> Json:
        """
        Raises:
            NoSuchConnector: nobody has said anything of such a task.
        """
        status = self._statuses.task(name, task)
        if status is None or name not in self._state.connectors:
            raise NoSuchConnector(f"No status found for task {name}-{task}")
        return kafka_shapes.task_state(task, _state(status))

    def tasks(self, name: str) -> list[Json]:
        """
        Each task with its configuration.

        Raises:
            NoSuchConnector: there is none.
        """
        tasks = self.find(name).tasks
        configs = () if tasks is None else (_task_config(tasks, task) for task in range(_count(tasks)))
        return [{"id": kafka_shapes.task_id(name, task), "config": config} for task, config in enumerate(configs)]

    def topics(self, name: str) -> list[str]:
        """Those that it has used since they were reset."""
        return sorted(self._statuses.topics(name))

    def _status(self, name: str, tasks: Mapping[int, RunState], connector: RunState | None) -> Json:
        found, status = self.find(name), self._statuses.connector(name)
        if status is None:
            raise NoSuchConnector(f"No status found for connector {name}")
        listed = [
            kafka_shapes.task_state(task, _state(one, tasks.get(task)))
            for task in range(_count(found.tasks))
            if (one := self._statuses.task(name, task)) is not None
        ]
        shown = _state(status, connector)
        short = shortage(self._state, found, self._statuses.work(name))
        if short and not status.trace:
            shown["trace"] = short
        return kafka_shapes.state_info(name, shown, listed, self.kind(name))


def _state(status: Status, instead: RunState | None = None) -> Json:
    shown = instead or status.state
    assert shown is not None, "what is to be forgotten is not kept"
    return kafka_shapes.state(shown.value, status.worker_id, status.trace)


def _count(tasks: TaskSet | None) -> int:
    return 0 if tasks is None else len(tasks.shares)


def _task_config(tasks: TaskSet, task: int) -> dict[str, str]:
    splits = [{"id": split.id, "detail": dict(split.detail)} for split in tasks.shares[task]]
    return {**tasks.config, GENERATION: str(tasks.generation), SPLITS: orjson.dumps(splits).decode()}
