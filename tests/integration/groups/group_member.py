"""
A member of a group as a process of its own, so that it can be killed. ``crew.py`` starts it and reads what it writes.

Every line is written before the next poll, which is what commits: ``TIME + PARTITIONS`` given, ``-`` revoked, ``!``
lost, ``r TOPIC PARTITION FIRST LAST`` handled, ``closing``, ``closed``, ``x`` an error. Times are CLOCK_MONOTONIC in
ns, the same for all processes of a machine. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

import headrace
from headrace import TopicPartition


class Diary:
    """What this member tells; a line is in the file once ``tell`` returns, whatever kills the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def tell(self, *words: object) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {' '.join(map(str, words))}\n".encode())

    def rebalanced(self, sign: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: self.tell(sign, ",".join(f"{tp.topic}:{tp.partition}" for tp in partitions))

    def handled(self, records: list[headrace.Record]) -> None:
        """Runs of offsets without a gap; those of one poll at one time."""
        now_ns, lines = time.monotonic_ns(), []
        for (topic, partition, _), run in groupby(
            enumerate(records), lambda at: (at[1].topic, at[1].partition, at[1].offset - at[0])
        ):
            offsets = [record.offset for _, record in run]
            lines.append(f"{now_ns} r {topic} {partition} {offsets[0]} {offsets[-1]}\n")
        os.write(self._file, "".join(lines).encode())


def read(consumer: headrace.Consumer, diary: Diary, end: threading.Event, work_s: float) -> None:
    while not end.is_set():
        try:
            records = consumer.poll(timeout_ms=100)
        except headrace.HeadraceError as error:
            diary.tell("x", type(error).__name__, error)
            continue
        if work_s and records:
            time.sleep(work_s)
        diary.handled(records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--diary", required=True)
    parser.add_argument("--topics", default="")
    parser.add_argument("--pattern")
    parser.add_argument("--work-s", type=float, default=0.0)
    parser.add_argument("--settings", type=json.loads, default={})
    a = parser.parse_args()
    diary, end = Diary(a.diary), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
    consumer = headrace.Consumer(bootstrap_servers=a.bootstrap, auto_offset_reset="earliest", **a.settings)
    what: dict[str, Any] = {"pattern": a.pattern} if a.pattern else {"topics": a.topics.split(",")}
    if "group_id" in a.settings:
        listeners = {f"on_{name}": diary.rebalanced(sign) for name, sign in (("assign", "+"), ("revoke", "-"))}
        consumer.subscribe(**what, **listeners, on_lost=diary.rebalanced("!"))
    else:
        consumer.subscribe(**what)
    read(consumer, diary, end, a.work_s)
    diary.tell("closing")
    consumer.close()
    diary.tell("closed")


if __name__ == "__main__":
    main()
