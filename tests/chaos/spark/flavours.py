"""
Topics that change while they are copied: records go, partitions come, a topic is deleted and created again.

What must be true then: each row that is there was written, none is there twice, and only those may be missing that were
gone before they could be read. Offsets that hold no record are in all runs, from transactions that were given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.testing import TestCluster

from ..transactions.storm import make_topic
from .copying import EXACT, PARTITIONS, Copying
from .judging import Place, judge, judge_what_is_left
from .scenarios import Report, Run, begun, finish

TRIMMED, GROWN, RENEWED = f"{EXACT}-trimmed", f"{EXACT}-grown", f"{EXACT}-renewed"
MORE = PARTITIONS + 2
ROUND = 240
"""Records of each topic in a round."""
GOES_ON = {"failOnDataLoss": "false"}


@dataclass
class Source:
    """A topic with one writer, so its offsets are known."""

    cluster: TestCluster
    topic: str
    width: int = PARTITIONS
    values: dict[Place, str] = field(default_factory=dict)
    written: int = 0

    def fill(self, prefix: str, records: int) -> None:
        """So many more, evenly."""
        ends = self.ends()
        places, values = [], []
        for number in range(self.written, self.written + records):
            partition = number % self.width
            places.append(partition)
            values.append(f"{prefix}{number}")
            self.values[partition, ends.get(partition, 0)] = values[-1]
            ends[partition] = ends.get(partition, 0) + 1
        with self.cluster.producer() as producer:
            producer.send_many(self.topic, [value.encode() for value in values], partition=places).result(60)
        self.written += records

    def ends(self) -> dict[int, int]:
        """Behind the last record of each partition."""
        found: dict[int, int] = {}
        for partition, offset in self.values:
            found[partition] = max(found.get(partition, 0), offset + 1)
        return found


def changes(cluster: TestCluster, directory: Path, seed: int) -> Report:
    """All of it under one application, which is killed in between."""
    copying = Copying(cluster, directory / "changes", available_now=False, per_batch=120)
    trimmed, grown, renewed = (
        Source(cluster, make_topic(cluster, name, PARTITIONS)) for name in (TRIMMED, GROWN, RENEWED)
    )
    copying.add(TRIMMED, topic=trimmed.topic, reading=GOES_ON)
    copying.add(GROWN, topic=grown.topic)
    copying.add(RENEWED, topic=renewed.topic, reading=GOES_ON)
    for source in (trimmed, grown, renewed):
        source.fill("a", 2 * ROUND)
    old: dict[Place, str] = {}
    gone: dict[int, int] = {}

    def grow() -> None:
        with cluster.admin() as admin:
            admin.add_partitions(grown.topic, MORE)
        grown.width = MORE

    def renew() -> None:
        old.update(renewed.values)
        with cluster.admin() as admin:
            admin.delete_topic(renewed.topic)
        make_topic(cluster, renewed.topic, PARTITIONS)
        renewed.values.clear()

    with begun(copying, "changes", seed) as run:
        weather = run.weather
        kill, hurt_python = (lambda: weather.hurt("kill application")), (lambda: weather.hurt("kill python"))
        turns: list[tuple[str, Callable[[], None]]] = [
            ("partitions added", grow),
            ("killed", kill),
            ("created again", renew),
            ("python killed", hurt_python),
            ("created again", lambda: None),
        ]
        for name, turn in turns:
            weather.await_work()
            turn()
            weather.tell(name)
            for source in (trimmed, grown, renewed):
                source.fill("b" if old else "a", ROUND)
            trim(run, trimmed, gone)
            weather.await_batches(3)
        finish(run)
        judge_all(run, trimmed, gone, grown, (old, renewed))
    return run.report


def trim(run: Run, source: Source, gone: dict[int, int]) -> None:
    """Records that the query has not read yet, most of the time."""
    chance, ends = run.weather.chance, source.ends()
    gone.update({partition: chance.randint(gone.get(partition, 0), end) for partition, end in ends.items()})
    with run.weather.cluster.admin() as admin:
        admin.delete_records({(source.topic, partition): offset for partition, offset in gone.items()})
    run.weather.tell(f"gone is what is below {gone}")


def judge_all(
    run: Run, trimmed: Source, gone: Mapping[int, int], grown: Source, renewed: tuple[Mapping[Place, str], Source]
) -> None:
    """By all readers."""
    copying, report = run.copying, run.report
    old, new = renewed
    for name in copying.queries:
        counts, ends = Counter[str](), copying.checkpoint(name).ends()
        for rows in copying.found(name).values():
            if name == GROWN:
                counts.update(judge(grown.values, rows, ends).counts)
            elif name == TRIMMED:
                counts.update(judge_what_is_left(trimmed.values, rows, ends, gone).counts)
            else:
                first, second = ([row for row in rows if row.split(":", 2)[2].startswith(prefix)] for prefix in "ab")
                every = {partition: 1 << 40 for partition, _ in old}
                counts.update(judge_what_is_left(old, first, every, every).counts)
                counts.update(judge(new.values, second, ends).counts)
        report.anomalies[name] = dict(counts)
    report.rows = trimmed.written + grown.written + new.written
    run.count()


FLAVOURS = {"changes": changes}
