"""
Prepares transactions for units: ``unit_writer.py BOOTSTRAP TOPIC OWNER SLOT NUMBER DIRECTORY``.

The driver names a round in DIRECTORY; for each the writer prepares a transaction of ``RECORDS`` values with a tag of
its own, and leaves the token there. Even slots have one transactional id, so they find what a writer before them has
prepared, and abort it; odd ones have a new id for each. It ends when the file ``stop`` is there; with 3 when another
one has its slot.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import papers

from headrace import HeadraceError, Producer

FENCED = 3
RECORDS = 12
TIMEOUT_MS = 8_000
LOOK_S = 0.02


def newest(directory: Path) -> list[int]:
    """Epoch, sequence and try of what the newest owner wants; empty: nothing yet."""
    rounds: list[list[int]] = [papers.get(path) for path in papers.names(directory, "round-*")]
    return max(rounds, default=[])


def prepare(bootstrap: str, topic: str, transactional_id: str, epoch: int, tag: str) -> str:
    """The token of a transaction with this tag."""
    settings: dict[str, Any] = {
        "transactional_id": transactional_id,
        "owner_epoch": epoch,
        "transaction_timeout_ms": TIMEOUT_MS,
    }
    with Producer(bootstrap, linger_ms=0, max_block_ms=10_000, **settings) as producer:
        left = producer.init_transactions()
        if left is not None:
            producer.abort_prepared(left)
        producer.begin_transaction()
        width = producer.partitions_for(topic)
        for number in range(RECORDS):
            producer.send(topic, f"{tag}:{number}".encode(), partition=number % width)
        return str(producer.prepare_transaction())


def main(bootstrap: str, topic: str, owner: str, slot: int, number: int, directory: Path) -> int:
    """Until it is told to end."""
    done: list[int] = []
    ready, attempts = ["ready"], count()
    papers.put(directory / f"slot-{slot}", number)
    while not (directory / "stop").exists():
        if papers.get(directory / f"slot-{slot}") != number:
            return FENCED
        wanted = newest(directory)
        if wanted == done or not wanted:
            time.sleep(LOOK_S)
            continue
        epoch, sequence, again = wanted
        tag = f"{sequence}.{again}.{slot}.{number}.{next(attempts)}"
        transactional_id = f"{owner}/{slot}" if slot % 2 == 0 else f"{owner}/{tag}"
        try:
            token = prepare(bootstrap, topic, transactional_id, epoch, tag)
        except HeadraceError as error:
            print(f"{tag}: {type(error).__name__} {error.then}: {error}", flush=True)
            time.sleep(LOOK_S)
            continue
        papers.put(directory / "tokens" / f"{epoch}-{sequence}-{again}-{slot}-{tag}", [slot, tag, token])
        done = wanted
        if ready:
            print(ready.pop(), flush=True)
    return 0


if __name__ == "__main__":
    args = sys.argv[1:]
    sys.exit(main(args[0], args[1], args[2], int(args[3]), int(args[4]), Path(args[5])))
