"""
A program for ``test_work_groups``: does the items of a group, each with a partition of its own that it fences.

It prints what happens, a line each: ``+ item epoch``, ``- item``, ``fenced item``, ``out``.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import headrace
from headrace.errors import FencedInstanceId, FencedWriter

BOOTSTRAP, NAME, TOPIC, INSTANCE = sys.argv[1:]
ITEMS = ["0", "1", "2", "3"]


SPEAKING = threading.Lock()


def say(*words: object) -> None:
    with SPEAKING:
        print(*words, flush=True)


def work(producer: headrace.Producer, item: Any) -> None:
    say("+", item.id, item.epoch)
    try:
        producer.fence(TOPIC, int(item.id), item.epoch)
        while not item.revoked.wait(0.05):
            producer.send(TOPIC, b"%d" % item.epoch, partition=int(item.id)).result(30)
    except FencedWriter:
        say("fenced", item.id)
    item.release()
    say("-", item.id)


def main() -> None:
    # Whoever runs the tests in the background of a shell has them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        headrace.Producer(BOOTSTRAP, linger_ms=0) as producer,
        headrace.WorkGroup(NAME, ITEMS, BOOTSTRAP, group_instance_id=INSTANCE or None) as group,
    ):
        try:
            for item in group:
                threading.Thread(target=work, args=(producer, item), daemon=True).start()
        except FencedInstanceId:
            say("out")


if __name__ == "__main__":
    main()
