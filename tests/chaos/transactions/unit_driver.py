"""
Commits units: ``unit_driver.py BOOTSTRAP OWNER WRITERS NUMBER DIRECTORY SEED``.

It becomes the owner, goes on behind the last unit that was committed, and for each asks the writers for tokens, by
files in DIRECTORY. What it plans, and how that ends, is noted in ``NUMBER.ledger`` first and afterwards. It ends when
the file ``finish`` is there; with 3 when another one is the owner.
"""

from __future__ import annotations

import random
import sys
import time
from itertools import count
from pathlib import Path

import papers

from headrace import HeadraceError, UnitOwner
from headrace.errors import FencedOwner, TransactionAbortable

FENCED = 3
WAIT_S, LOOK_S = 2.0, 0.02
LEFT_OUT = 0.1
"""How often a token is left out of its unit, which aborts it."""
API_TIMEOUT_MS = 5_000


class Driver:
    """One owner."""

    def __init__(self, owner: UnitOwner, writers: int, number: int, directory: Path, chance: random.Random) -> None:
        self._owner, self._writers, self._directory, self._chance = owner, writers, directory, chance
        self._ledger = directory / f"{number}.ledger"
        self._epoch = self._next = 0

    def begin(self) -> None:
        """Become the owner."""
        while True:
            try:
                epoch, last = self._owner.init()
                break
            except HeadraceError as error:
                if error.then != "retry":
                    raise
                print(f"{type(error).__name__}: {error}", flush=True)
        papers.note(self._ledger, ["init", epoch, last])
        self._epoch, self._next = epoch, last + 1

    def unit(self) -> None:
        """The next one, with other tokens until it is committed."""
        for again in count():
            papers.put(self._directory / f"round-{self._epoch}", [self._epoch, self._next, again])
            found = self._tokens(again)
            if len(found) > 1 and self._chance.random() < LEFT_OUT:
                found.popitem()
            papers.note(self._ledger, ["plan", self._next, again, sorted(found)])
            if self._commit(list(found.values())):
                papers.note(self._ledger, ["committed", self._next, again])
                self._next += 1
                return
            papers.note(self._ledger, ["refused", self._next, again])

    def _tokens(self, again: int) -> dict[str, str]:
        """Tag -> token, one of each writer or of those that come in time; empty: a newer owner is there."""
        deadline = time.monotonic() + WAIT_S
        while True:
            files = papers.names(self._directory / "tokens", f"{self._epoch}-{self._next}-{again}-*")
            by_slot = {slot: (tag, token) for slot, tag, token in map(papers.get, files)}
            late = time.monotonic() > deadline
            if len(by_slot) == self._writers or (late and by_slot):
                return dict(by_slot.values())
            newer = [path for path in papers.names(self._directory, "round-*") if papers.get(path)[0] > self._epoch]
            if late and newer:
                return {}
            time.sleep(LOOK_S)

    def _commit(self, tokens: list[str]) -> bool:
        """False: one of them is not prepared any more."""
        while True:
            try:
                self._owner.commit(self._next, tokens)
                return True
            except TransactionAbortable as error:
                print(f"unit {self._next}: {error}", flush=True)
                return False
            except HeadraceError as error:
                if error.then != "retry":
                    raise
                print(f"unit {self._next}: {type(error).__name__}: {error}", flush=True)


def main(bootstrap: str, owner: str, writers: int, number: int, directory: Path, seed: str) -> int:
    """Until it is told to end."""
    with UnitOwner(bootstrap, owner, default_api_timeout_ms=API_TIMEOUT_MS) as unit_owner:
        driver = Driver(unit_owner, writers, number, directory, random.Random(seed))
        try:
            driver.begin()
            for turn in count():
                if (directory / "finish").exists():
                    (directory / "stop").touch()
                    return 0
                if turn == 1:
                    print("ready", flush=True)
                driver.unit()
        except FencedOwner as error:
            print(f"fenced: {error}", flush=True)
    return FENCED


if __name__ == "__main__":
    args = sys.argv[1:]
    sys.exit(main(args[0], args[1], int(args[2]), int(args[3]), Path(args[4]), args[5]))
