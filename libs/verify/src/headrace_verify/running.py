"""
``headrace verify run``: rounds of load, reading and judging, until the time is over or somebody ends it.

A round has topics of its own and ends when its history is as long as a history may be; so memory has a bound however
long a run is. What a round has read is read again later, and must be the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

from headrace import AdminClient, Consumer, HeadraceError, Producer
from headrace.errors import TopicAlreadyExists, UnknownTopicOrPartition
from headrace_verify.checker import Key, Value
from headrace_verify.checker_history import merge_histories, to_line
from headrace_verify.client import Client
from headrace_verify.judging import Ended, Mark, find_changed, judge
from headrace_verify.load import Load
from headrace_verify.plan import Names, Plan
from headrace_verify.reading import NotReadable, all_stable, note_everything, partitions_of, read_records, wait_until
from headrace_verify.report import Report

LOOK_S: Final = 0.5
ROUNDS_KEPT: Final = 8
"""Topics of so many rounds are there at once; those of the oldest are read again, then deleted."""
ASK_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class State:
    """How far a run is, for who watches."""

    phase: str
    """``load``, ``settle``, ``read``, ``judge``, ``read again`` or ``clean``."""
    round: int
    seconds: float
    """Of load."""
    events: int
    """Operations and records read in this round."""
    errors: int


class Run:
    """
    One run.

    Args:
        stop: when it is set the load ends, and what there is is judged.
        watch: told every half second how far it is.
        history: where the history of the first round with an anomaly goes; none without.
    """

    def __init__(
        self, plan: Plan, stop: threading.Event, watch: Callable[[State], object], history: Path | None = None
    ) -> None:
        self._plan, self._stop, self._watch, self._history = plan, stop, watch, history
        self.report = Report(plan, datetime.now(UTC).isoformat(timespec="seconds"))
        self._first_process = 1
        self._kept: deque[tuple[Names, dict[Key, Mark]]] = deque()
        self._topics: list[str] = []
        """That are there."""
        self._load: Load | None = None

    def run(self) -> Report:
        """
        All rounds, and the end. Where the cluster does not serve all again in time the report says so: what came
        before was judged, and topics stay there.

        Raises:
            HeadraceError: the first topics could not be made.
        """
        try:
            self._all_rounds()
        except NotReadable as error:
            self.report.not_judged = str(error)
        if not self.report.acknowledged and self.report.not_judged is None:
            self.report.not_judged = "nothing was acknowledged"
        self.report.interrupted = self._stop.is_set()
        self.report.kept_topics = list(self._topics)
        return self.report

    def _all_rounds(self) -> None:
        left = self._plan.seconds
        for number in count(1):
            self.report.rounds = number
            took = self._round(number, left)
            left -= took
            if len(self._kept) > ROUNDS_KEPT:
                self._read_again(*self._kept.popleft())
            if left < LOOK_S or self._stop.is_set():
                break
        while self._kept:
            self._read_again(*self._kept.popleft())

    # --- one round ----------------------------------------------------------------------------------------------

    def _round(self, number: int, seconds: float) -> float:
        """Its seconds of load."""
        names = self._plan.names(number)
        self._make_topics(names)
        load = self._load = Load(self._plan, names, number, self._first_process)
        began_ns = time.monotonic_ns()
        load.start()
        try:
            while (time.monotonic_ns() - began_ns) / 1e9 < seconds and load.events < self._plan.events_max:
                if self._stop.wait(LOOK_S):
                    break
                self._say("load", began_ns)
        finally:
            ended_ns = time.monotonic_ns()
            took = (ended_ns - began_ns) / 1e9
            self.report.load_seconds += took
            self._say("settle")
            load.end()
        self.report.errors.update(load.errors)
        self.report.find("client-bug", load.bugs)
        self._judge(load, names, began_ns, ended_ns)
        return took

    def _judge(self, load: Load, names: Names, began_ns: int, ended_ns: int) -> None:
        topics = [names.log, names.copies]
        if not wait_until(lambda: all_stable(self._plan.servers, topics), self._plan.settle_s):
            self.report.find("hanging-transaction", [f"of {' or '.join(topics)}: readers of committed records wait"])
        self._say("read")
        reader = self._read_all(load, names)
        with self._consumer(names.group("copier")) as consumer:
            copiers = _fetch_committed(consumer, names.log)
        with self._consumer(names.group("group")) as consumer:
            group = _fetch_committed(consumer, names.log)
        copies = [_origin(one.value) for one in read_records(self._plan.servers, names.copies, self._plan.settle_s)]
        self._say("judge")
        history = merge_histories(load.histories)
        ended = Ended(history, reader, frozenset(load.members), group, copies, copiers, began_ns, ended_ns)
        found = judge(ended)
        self.report.add(found, began_ns)
        self._first_process = load.next_process
        if found.anomalies or load.bugs:
            self._keep_history(load)
            return  # the topics stay, to be looked at
        self._kept.append((names, found.marks))

    def _read_all(self, load: Load, names: Names) -> int:
        """The process that did."""
        number, history = load.new_process("reader")
        with Producer(self._plan.servers) as producer, self._consumer() as consumer:
            note_everything(Client(producer, consumer, names.log, history, number, load.tell), self._plan.settle_s)
        return number

    def _keep_history(self, load: Load) -> None:
        if self._history is None or self.report.history is not None:
            return
        with self._history.open("wb") as file:
            for entry in merge_histories(load.histories):
                file.write(to_line(entry) + b"\n")
        self.report.history = str(self._history)

    # --- what was read is there later too ------------------------------------------------------------------------

    def _read_again(self, names: Names, marks: dict[Key, Mark]) -> None:
        self._say("read again")
        now: dict[Key, dict[int, Value]] = {key: {} for key in marks}
        for one in read_records(self._plan.servers, names.log, self._plan.settle_s):
            now.setdefault(str(one.partition), {})[one.offset] = int(one.value)
        texts = [f"{names.log}: {text}" for text in find_changed(marks, now)]
        self.report.find("changed-later", texts)
        if not texts and not self._plan.keep:
            self._say("clean")
            self._delete_topics(names)
            self._delete_groups(names)

    # --- topics ---------------------------------------------------------------------------------------------------

    def _make_topics(self, names: Names) -> None:
        configs = {"min.insync.replicas": str(self._plan.min_in_sync)}
        for topic in (names.log, names.copies):

            def make(topic: str = topic) -> bool:
                with self._admin() as admin:
                    try:
                        admin.create_topic(topic, self._plan.keys, self._plan.replicas, configs=configs)
                    except TopicAlreadyExists:
                        pass  # by an attempt whose answer was lost
                return True

            if self.report.rounds == 1:
                make()  # at the beginning the cluster is whole: what is wrong is told at once
            else:
                wait_until(make, self._plan.settle_s)
            self._topics.append(topic)

    def _delete_topics(self, names: Names) -> None:
        for topic in (names.log, names.copies):
            try:
                with self._admin() as admin:
                    admin.delete_topic(topic)
            except UnknownTopicOrPartition:
                pass
            except HeadraceError:
                continue  # named in the report: it is still there
            self._topics.remove(topic)

    def _delete_groups(self, names: Names) -> None:
        """What its members and its own reading left; offsets of deleted topics are of no use to anybody."""
        with suppress(HeadraceError), self._admin() as admin:  # who is not there now expires as any empty group
            groups = [group.group_id for group in admin.list_groups().groups]
            admin.delete_groups(group for group in groups if group.startswith(names.group("")))

    # --- plumbing -------------------------------------------------------------------------------------------------

    def _admin(self) -> AdminClient:
        return AdminClient(self._plan.servers, default_api_timeout_ms=ASK_MS)

    @contextmanager
    def _consumer(self, group: str | None = None) -> Iterator[Consumer]:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        if group is not None:
            settings |= {"group_id": group, "enable_auto_commit": False}
        with Consumer(bootstrap_servers=self._plan.servers, **settings) as consumer:
            yield consumer

    def _say(self, phase: str, began_ns: int | None = None) -> None:
        load = self._load
        seconds = self.report.load_seconds
        if began_ns is not None:
            seconds += (time.monotonic_ns() - began_ns) / 1e9
        events, errors = (load.events, sum(load.errors.values())) if load else (0, 0)
        self._watch(State(phase, self.report.rounds, seconds, events, errors))


def _fetch_committed(consumer: Consumer, topic: str) -> dict[Key, int]:
    found = consumer.committed(partitions_of(consumer, topic))
    return {str(partition.partition): at.offset for partition, at in found.items() if at is not None}


def _origin(value: bytes) -> tuple[Key, int]:
    partition, _, offset = value.decode().partition(":")
    return partition, int(offset)
