"""
Prepares transactions that others decide too: ``prepared_writer.py BOOTSTRAP TOPIC SLOT NUMBER SEED DIRECTORY``.

As the recipe for databases does it: who first writes the verdict of a token down decides it, whoever finds the token
acts on what is written there. A writer that starts finds what the one before has prepared; if nothing is written, it
writes that it is aborted. It ends when the file ``stop`` is there, with 3 when another one has its slot.
"""

from __future__ import annotations

import random
import sys
from itertools import count
from pathlib import Path
from typing import Any

import papers

from headrace import HeadraceError, PreparedTransaction, Producer
from headrace.errors import AlreadyDecided

FENCED = 3
RECORDS = 12
TIMEOUT_MS = 8_000
ABORTED = 0.3


class Writer:
    """One process of a slot."""

    def __init__(self, bootstrap: str, topic: str, slot: int, number: int, seed: str, directory: Path) -> None:
        self._bootstrap, self._topic, self._slot, self._number = bootstrap, topic, slot, number
        self._directory, self._chance = directory, random.Random(seed)
        self._turns, self._ready = count(), ["ready"]

    def run(self) -> int:
        """With one producer after the other until it is told to end; after an error with the next."""
        place = self._directory / f"slot-{self._slot}"
        papers.put(place, self._number)
        while papers.get(place) == self._number:
            settings: dict[str, Any] = {
                "transactional_id": f"prepared-{self._slot}",
                "transaction_timeout_ms": TIMEOUT_MS,
            }
            try:
                with Producer(self._bootstrap, linger_ms=0, max_block_ms=10_000, **settings) as producer:
                    self._work(producer)
                    return 0
            except AlreadyDecided:
                raise  # whoever writes the verdict down decides, and all the others do the same
            except HeadraceError as error:
                print(f"{type(error).__name__} {error.then}: {error}", flush=True)
                if error.then == "fenced":
                    return FENCED
        return FENCED

    def _work(self, producer: Producer) -> None:
        left = producer.init_transactions()
        if left is not None:
            self._decide(producer, left, commit=False)
        while not (self._directory / "stop").exists():
            token = self._prepare(producer, f"{self._number}.{next(self._turns)}")
            self._decide(producer, token, commit=self._chance.random() > ABORTED)
            if self._ready:
                print(self._ready.pop(), flush=True)

    def _prepare(self, producer: Producer, tag: str) -> PreparedTransaction:
        producer.begin_transaction()
        width = producer.partitions_for(self._topic)
        for number in range(RECORDS):
            producer.send(self._topic, f"{tag}:{number}".encode(), partition=number % width)
        token = producer.prepare_transaction()
        papers.note(self._directory / f"{self._number}.tags", [tag, str(token)])
        return token

    def _decide(self, producer: Producer, token: PreparedTransaction, *, commit: bool) -> None:
        """As wanted, unless it is decided already."""
        if papers.put_first(self._directory / "verdicts" / str(token), commit):
            producer.commit_prepared(token)
        else:
            producer.abort_prepared(token)


if __name__ == "__main__":
    args = sys.argv[1:]
    sys.exit(Writer(args[0], args[1], int(args[2]), int(args[3]), args[4], Path(args[5])).run())
