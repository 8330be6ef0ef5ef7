"""Streams: how soon a worker counts again: with its disk, from a snapshot, and from the changelog alone."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare
from bench.sizes import sized
from bench.streams_workloads import our_worker, running
from headrace import Consumer, Producer
from headrace_streams.adapters.snapshots import ArrowSnapshots

TASKS = 1
WORDS_A_LINE = 10


class Words:
    """A word count of many words, whose worker is started again and again."""

    def __init__(self, cluster: HeadraceSide, directory: Path, count: int) -> None:
        self.cluster = cluster
        self.source, self.target = cluster.topic(TASKS), cluster.topic(TASKS)
        self._topics = {"SOURCE": self.source, "TARGET": self.target}
        self.count = count
        self.directory = directory
        self.url = f"file://{directory}/snapshots"
        self.disk = {"bootstrap_servers": cluster.bootstrap, "state_dir": str(directory / "state")}
        self._again = 0

    def fill(self) -> None:
        """Count each word once, until a snapshot of each task has all of it."""
        words = [b"word%d" % number for number in range(self.count)]
        lines = [b" ".join(words[first : first + WORDS_A_LINE]) for first in range(0, self.count, WORDS_A_LINE)]
        self._send(lines)
        settings = self.disk | {"snapshot_url": self.url, "snapshot_interval_ms": 1_000, "commit_rows": 10_000}
        keys: set[bytes | None] = set()
        with running(*our_worker("words", self._topics, settings)), self._reader("earliest") as reader:
            while len(keys) < self.count:
                keys.update(record.key for record in reader.poll(1_000, max_records=50_000))
            written = asyncio.run(self._written())
            while (now := asyncio.run(self._written())) != written or len(now) < TASKS:
                written = now
                time.sleep(3)

    async def _written(self) -> list[int]:
        place = ArrowSnapshots(self.url, f"bench-{self.source}")
        found = [await place.find(f"by-word/{number}") for number in range(TASKS)]
        return [max(one.next_offset for one in of_task if one.complete) for of_task in found if of_task]

    def start(self, **settings: str | int) -> float:
        """Seconds from a worker's start until it has counted a line that came before."""
        self._again += 1
        self._send([b"again%d" % self._again])
        with self._reader("latest") as reader:
            reader.poll(1_000)
            begun = time.perf_counter()
            with running(*our_worker("words", self._topics, self.disk | settings)):
                while not reader.poll(60_000):
                    pass
                return time.perf_counter() - begun

    def _send(self, lines: list[bytes]) -> None:
        with Producer(self.cluster.bootstrap) as producer:
            producer.send_many(self.source, lines)

    def _reader(self, begin: Literal["earliest", "latest"]) -> Consumer[bytes, bytes]:
        servers = self.cluster.bootstrap
        return Consumer(
            self.target, bootstrap_servers=servers, auto_offset_reset=begin, isolation_level="read_committed"
        )


def restore(runs: int) -> list[Row]:
    """A million keys in one task: the state of 1 M words."""
    count = sized(1_000_000, 10_000)
    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as directory:
        words = Words(cluster, Path(directory), count)
        words.fill()
        on_disk, snapshot, changelog = [], [], []
        for _ in range(runs):
            on_disk.append(words.start())
            shutil.rmtree(words.disk["state_dir"])
            changelog.append(words.start())
            shutil.rmtree(words.disk["state_dir"])
            snapshot.append(words.start(snapshot_url=words.url))
    name = f"streams start with {count:,} keys"
    return [
        compare(f"{name}: snapshot / changelog", "s", snapshot, changelog),
        compare(f"{name}: state on disk", "s", on_disk),
    ]
