"""
Consume, transform, produce as one of several processes of a group: ``copier.py BOOTSTRAP SOURCE TARGET SLOT SEED STOP
HOW``.

SLOT makes the transactional id. Each record becomes one that says where it came from (``headrace_verify.copying``). HOW
is ``records`` or ``tables``. It ends when the file STOP exists and the group has handled all of SOURCE; with 3 when it
is fenced.
"""

from __future__ import annotations

import random
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace import Consumer, HeadraceError, Producer
from headrace_verify.copying import all_is_handled, copy_records, copy_turn

GROUP = "copiers"
FENCED = 3
ROWS = 5_000
ABORTED = 0.05
"""So many transactions are given up in the middle."""
TIMEOUT_MS = 8_000


def copy_table(producer: Producer, consumer: Consumer, target: str) -> int:
    """All at once."""
    table = consumer.poll_table(timeout_ms=300, max_records=ROWS)
    if table.num_rows:
        partition, offset = pc.cast(table["partition"], pa.string()), pc.cast(table["offset"], pa.string())
        value = pc.cast(pc.binary_join_element_wise(partition, offset, ":"), pa.binary())
        producer.send_table(target, pa.table({"value": value, "partition": table["partition"]}))
    return int(table.num_rows)


def main(bootstrap: str, source: str, target: str, slot: str, seed: str, stop: Path, how: str) -> int:
    """Until all is handled."""
    chance = random.Random(seed)
    copy = copy_records if how == "records" else copy_table
    reading: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
    }
    with (
        Producer(bootstrap, transactional_id=f"copier-{slot}", transaction_timeout_ms=TIMEOUT_MS) as producer,
        Consumer(source, bootstrap_servers=bootstrap, group_id=GROUP, **reading) as consumer,
    ):
        for turn in count():
            if turn == 1:
                print("ready", flush=True)
            try:
                copied = copy_turn(producer, consumer, target, copy, give_up=chance.random() < ABORTED)
                if copied == 0 and stop.exists() and all_is_handled(consumer, source):
                    return 0
            except HeadraceError as error:
                print(f"{type(error).__name__} {error.then}: {error}", flush=True)
                if error.then == "fenced":
                    return FENCED
    raise AssertionError("it has no end of its own")


if __name__ == "__main__":
    args = sys.argv[1:]
    sys.exit(main(args[0], args[1], args[2], args[3], args[4], Path(args[5]), args[6]))
