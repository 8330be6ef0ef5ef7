"""
The demo itself: cluster, topic, a producer and a consumer that run beside each other, and the proof at the end.

One thread: the SDK's clients work in the background, so a loop that hands out rows, takes what was read and draws is
all there is. A run that was interrupted goes on where the topic ends: every record carries its carrier's number, so
the rows that are there already are known.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from headrace_cli.acknowledged import Acknowledged
from headrace_cli.demo.flights import ROWS, Departure, carrier_names, data_directory, departures
from headrace_cli.demo.tally import Tally
from headrace_cli.demo.view import Progress, View
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.local.events import EventTail
from headrace_common.core.errors import HeadraceError, TopicAlreadyExists

if TYPE_CHECKING:
    from headrace import Consumer, Producer, TopicPartition
    from headrace_cli.local import LocalCluster

TOPIC: Final = "flights"
PARTITIONS: Final = 6
CHUNK_ROWS: Final = 2_000
IN_FLIGHT_ROWS_MAX: Final = 60_000
POLL_MS: Final = 20
POLL_RECORDS: Final = 5_000
READY_SECONDS: Final = 30.0
STALL_SECONDS: Final = 120.0
FLUSH_SECONDS: Final = 5.0
EVENTS_TOLD: Final = frozenset({"died", "ready", "gave up", "killed", "failed"})


@dataclass(frozen=True, slots=True)
class Verified:
    """What the proof found."""

    records: int
    carriers: int
    wrote: int
    seconds: float
    problems: list[str]


class Demo:
    """One run against a cluster that is up."""

    def __init__(self, cluster: LocalCluster, view: Callable[[dict[str, str]], View], rate: float) -> None:
        self._cluster = cluster
        self._bootstrap = ",".join(cluster.bootstrap_servers)
        self._events = EventTail(cluster.directory.events)
        self._data = data_directory()
        self._view = view(carrier_names(self._data))
        self._rate = rate
        self._acknowledged = Acknowledged()
        self._source: Counter[str] = Counter()
        self.progress = Progress(ROWS, Tally())

    def run(self) -> Verified:
        """
        Write what is missing, read everything, and compare.

        Raises:
            CommandFailed: nothing moved for two minutes.
            HeadraceError: a record could not be written.
        """
        from headrace import Consumer, Producer

        create_topic(self._bootstrap, TOPIC, PARTITIONS)
        begun = time.monotonic()
        with (
            self._view,
            Consumer(TOPIC, bootstrap_servers=self._bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            partitions = topic_partitions()
            self._read_what_is_there(consumer, partitions)
            producer = Producer(self._bootstrap, on_delivery=self._acknowledged.note, linger_ms=20)
            try:
                self._stream(producer, consumer)
            finally:
                producer.close(FLUSH_SECONDS)
            in_topic = records_in(consumer, partitions)
            self._drain(consumer, in_topic)
            self._view.draw(self.progress, last=True)
        problems = self.progress.tally.verdict(self._source, in_topic)
        carriers = len(self.progress.tally.carriers)
        return Verified(in_topic, carriers, self.progress.sent, time.monotonic() - begun, problems)

    def _read_what_is_there(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """An earlier run's records; then every carrier's next number is known."""
        there = records_in(consumer, partitions)
        self.progress.already_there = there
        if there:
            self._view.note(self.progress, f"{there:,} records are there from an earlier run")
        self._drain(consumer, there)

    def _drain(self, consumer: Consumer, records: int) -> None:
        watch = Watch()
        while self.progress.tally.records < records:
            self._take(consumer)
            watch.check(self.progress.tally.records, "read")

    def _stream(self, producer: Producer, consumer: Consumer) -> None:
        rows = self._missing(departures(self._data))
        rows = itertools.chain(list(itertools.islice(rows, 1)), rows)  # the clock starts at the first that is missing
        begun, watch, more = time.monotonic(), Watch(), True
        progress, acknowledged = self.progress, self._acknowledged
        while more or acknowledged.records < progress.sent:
            due = self._due(time.monotonic() - begun)
            if more and due > 0:
                chunk = list(itertools.islice(rows, due))
                more = len(chunk) == due
                if chunk:
                    producer.send_many(TOPIC, [row.value for row in chunk], keys=[row.key for row in chunk])
                    progress.sent += len(chunk)
            self._take(consumer)
            watch.check(progress.tally.records + acknowledged.records, "moved")

    def _due(self, elapsed: float) -> int:
        """How many rows to hand out now, by the rate and by what is under way."""
        room = IN_FLIGHT_ROWS_MAX - (self.progress.sent - self._acknowledged.records)
        due = CHUNK_ROWS if self._rate <= 0 else int(self._rate * elapsed) - self.progress.sent
        return max(min(due, room, CHUNK_ROWS), 0)

    def _missing(self, rows: Iterator[Departure]) -> Iterator[Departure]:
        """The rows that are not in the topic yet; counts the source on the way."""
        there = self.progress.tally.count_seen()
        for row in rows:
            code = row.key.decode()
            self._source[code] += 1
            if self._source[code] > there[code]:
                yield row

    def _take(self, consumer: Consumer) -> None:
        """What was read meanwhile, into the tally, onto the screen."""
        tally = self.progress.tally
        for record in consumer.poll(POLL_MS, max_records=POLL_RECORDS):
            tally.add(record.key, _json(record.value), f"{record.topic}-{record.partition}@{record.offset}")
        self._acknowledged.raise_first()
        self.progress.acknowledged = self._acknowledged.records
        if self._cluster.revive():
            self._view.note(self.progress, "the supervisor was killed, and all processes with it; starting them again")
        for event in self._events.new():
            if event.kind in EVENTS_TOLD:
                self._view.note(self.progress, event.text)
        self._view.draw(self.progress)


class Watch:
    """Ends a run in which nothing happens any more."""

    def __init__(self) -> None:
        self._count = -1
        self._since = time.monotonic()

    def check(self, count: int, what: str) -> None:
        """Raises: CommandFailed when ``count`` has not changed for two minutes."""
        now = time.monotonic()
        if count != self._count:
            self._count, self._since = count, now
        elif now - self._since > STALL_SECONDS:
            raise CommandFailed(
                f"nothing was {what} for {STALL_SECONDS:.0f} s",
                ExitCode.TIMED_OUT,
                "`headrace status` shows the processes; their logs are in the data directory.",
            )


def create_topic(bootstrap: str, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    """
    Create a topic, with as many replicas as the cluster gives by itself, unless it is there. A cluster that just
    started may need a moment.

    Raises:
        HeadraceError: it did not work in half a minute.
    """
    from headrace import AdminClient

    deadline = time.monotonic() + READY_SECONDS
    with AdminClient(bootstrap) as admin:
        while True:
            try:
                admin.create_topic(name, partitions, configs=configs)
            except TopicAlreadyExists:
                return
            except HeadraceError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return


def topic_partitions() -> list[TopicPartition]:
    from headrace import TopicPartition

    return [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def records_in(consumer: Consumer, partitions: list[TopicPartition]) -> int:
    """How many the topic holds, by its offsets."""
    firsts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return sum(ends[p] - firsts[p] for p in partitions)


def _json(value: Any) -> dict[str, Any] | None:
    try:
        row = orjson.loads(value)
    except (orjson.JSONDecodeError, TypeError):
        return None
    return row if isinstance(row, dict) else None
