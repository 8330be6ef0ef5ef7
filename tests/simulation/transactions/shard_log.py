"""
The log of one shard as its leader keeps it: fencing tokens, sequences, a committed prefix, leaders that change.

What is appended is not committed yet; a change of leader may cut any end of what is not. Who wrote and got no answer
does not know which. The rules about tokens and sequences are the broker's, in a few lines: ``Fences`` and the producer
state have a simulation of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.transactions.processes import Process, Promise

from headrace_common.core.errors import FencedWriter, LeaderNotAvailable, NotEnoughReplicas
from headrace_coordinator.core.effects import Row

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World


@dataclass(frozen=True)
class Numbered:
    """A row, and when the state machine that wrote it decided it; what the invariants go by."""

    row: Row
    number: int
    note: object = None


@dataclass
class Entry:
    """One batch."""

    token: int
    sequence: int
    rows: tuple[Numbered, ...]
    fence: bool = False
    answers: list[Promise] = field(default_factory=list)


class OtherToken(FencedWriter):
    """The partition has another token."""

    def __init__(self, token: int) -> None:
        super().__init__(f"the partition's fencing token is {token}")
        self.token = token


class ShardLog:
    """The partition of one shard."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.world = world
        self.entries: list[Entry] = []
        self.committed = 0
        self.stalled_until = 0.0
        self.epoch = 0

    # --- what writers ask; each answers the promise later, or never ---------------------------------------------

    def fence(self, answer: Promise, token: int) -> None:
        """Set a token above the present one."""
        if token <= self.token:
            answer.settle(error=OtherToken(self.token))
            return
        self._append(Entry(token, 0, (), fence=True), answer)

    def append(self, answer: Promise, token: int, sequence: int, rows: tuple[Numbered, ...]) -> None:
        """Write under a token. A sequence that is there already is not written again."""
        if not self.admits(token):
            answer.settle(error=OtherToken(self.token))
            return
        if self.world.rng.random() < 0.01 and not self.world.calm:
            answer.settle(error=NotEnoughReplicas("fewer replicas in sync than min.insync.replicas"))
            return
        found = self.repeated(token, sequence)
        if found is None:
            self._append(Entry(token, sequence, rows), answer)
        elif found < 0:
            self.world.counts["late copies refused"] += 1
        elif found < self.committed:
            answer.settle(found)
        else:
            self.entries[found].answers.append(answer)

    def admits(self, token: int) -> bool:
        """Whether a writer with this token may write."""
        return token == self.token

    def repeated(self, token: int, sequence: int) -> int | None:
        """Where the writer's batch of this sequence is; below 0: superseded long ago; None: it is new."""
        last = self.entries[-1] if self.entries else None
        if last is None or last.fence or last.token != token or last.sequence < sequence:
            return None
        return len(self.entries) - 1 if last.sequence == sequence else -1

    @property
    def token(self) -> int:
        """The present one; 0: none yet."""
        return next((e.token for e in reversed(self.entries) if e.fence), 0)

    def read(self, until: int) -> list[Row]:
        """What is committed, up to an offset."""
        assert until <= self.committed, "readers wait for what is committed"
        return [one.row for entry in self.entries[:until] for one in entry.rows]

    # --- what happens inside ----------------------------------------------------------------------------------

    def _append(self, entry: Entry, answer: Promise) -> None:
        entry.answers.append(answer)
        self.entries.append(entry)
        rng = self.world.rng
        wait = 1.0 + rng.random() * 8.0
        if not self.world.calm and rng.random() < 0.02:
            wait += rng.random() * 6_000.0
        due = max(self.world.schedule.now + wait, self.stalled_until)
        self.world.schedule.after(due - self.world.schedule.now, self._commit, entry, self.epoch)

    def _commit(self, entry: Entry, epoch: int) -> None:
        if epoch != self.epoch:
            return
        now = self.world.schedule.now
        if now < self.stalled_until:
            self.world.schedule.after(self.stalled_until - now, self._commit, entry, epoch)
            return
        self._commit_until(self.entries.index(entry, self.committed) + 1 if entry in self._open() else 0)

    def _open(self) -> list[Entry]:
        return self.entries[self.committed :]

    def _commit_until(self, end: int) -> None:
        while self.committed < end:
            entry = self.entries[self.committed]
            self.committed += 1
            self.world.invariants.committed(self.number, entry)
            for answer in entry.answers:
                answer.settle(self.committed - 1)

    def change_leader(self) -> None:
        """The new leader has any part of what is not committed; nobody gets an answer from the old one."""
        self.epoch += 1
        keep = self.world.rng.randint(self.committed, len(self.entries))
        for entry in self._open():
            for answer in entry.answers:
                if self.world.rng.random() < 0.5:
                    answer.settle(error=LeaderNotAvailable("the leader has changed"))
            entry.answers = []
        if keep < len(self.entries):
            self.world.counts["appends cut"] += 1
        del self.entries[keep:]
        self._commit_until(keep)

    def stall(self, ms: float) -> None:
        """Nothing is committed for a while."""
        self.stalled_until = self.world.schedule.now + ms


class Brokers(Process):
    """All brokers in one: they keep the logs, and tell who coordinates a group and what topics there are."""

    def __init__(self, number: int, world: World) -> None:
        super().__init__(number, world)
        self.up = True
        self.logs: dict[int, ShardLog] = {}
