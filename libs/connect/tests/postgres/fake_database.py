"""
A database with transactions, as far as chunks beside a stream can tell: commits are in the WAL before they are visible,
and hold their locks until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_connect.core.snapshot import Key, Mark, Visible

State = dict[Key, int]
Op = tuple[Key, Key | None, int]
"""The key before, the key after (None: deleted), and the value after."""


@dataclass
class Commit:
    xid: int
    ops: list[Op] | None
    """None: the table was truncated."""

    def apply(self, state: State) -> None:
        if self.ops is None:
            state.clear()
            return
        for before, after, value in self.ops:
            state.pop(before, None)
            if after is not None:
                state[after] = value

    def keys(self) -> list[Key] | None:
        return self.ops and [key for before, after, _ in self.ops for key in (before, after) if key is not None]


@dataclass
class Transaction:
    xid: int
    ops: list[Op] | None = field(default_factory=list)
    locked: set[Key] = field(default_factory=set)
    in_wal: bool = False


class FakeDatabase:
    def __init__(self, initial: State, first_xid: int) -> None:
        self.initial = initial
        self.next_xid = first_xid
        self.completed = first_xid - 1
        self.wal: list[Commit | Mark] = []
        self.active: dict[int, Transaction] = {}

    def begin(self) -> Transaction:
        transaction = Transaction(self.next_xid)
        self.active[self.next_xid] = transaction
        self.next_xid += 1
        return transaction

    def change(self, transaction: Transaction, op: Op) -> None:
        """Nothing happens if a row is locked: a session would wait."""
        keys = {key for key in op[:2] if key is not None}
        others = [other for other in self.active.values() if other is not transaction]
        if transaction.in_wal or transaction.ops is None or any(o.ops is None or o.locked & keys for o in others):
            return
        transaction.locked |= keys
        transaction.ops.append(op)

    def truncate(self, transaction: Transaction) -> None:
        others = [other for other in self.active.values() if other is not transaction]
        if not transaction.in_wal and not transaction.locked and not any(o.ops is None or o.locked for o in others):
            transaction.ops = None

    def commit(self, transaction: Transaction) -> None:
        if not transaction.in_wal:
            transaction.in_wal = True
            self.wal.append(Commit(transaction.xid, transaction.ops))

    def end(self, transaction: Transaction) -> None:
        """It becomes visible if it has committed, else it is undone."""
        del self.active[transaction.xid]
        self.completed = max(self.completed, transaction.xid)

    def visible(self) -> Visible:
        xmax = self.completed + 1
        return Visible(min([*self.active, xmax]), xmax, frozenset(xid for xid in self.active if xid < xmax))

    @property
    def locked(self) -> bool:
        return any(transaction.ops is None for transaction in self.active.values())

    def read(self, visible: Visible) -> State:
        return self.state(len(self.wal), visible)

    def state(self, end: int, visible: Visible | None = None) -> State:
        """After what is in the WAL below ``end``."""
        state = dict(self.initial)
        for entry in [entry for entry in self.wal[:end] if isinstance(entry, Commit)]:
            hidden = visible is not None and (entry.xid >= visible.xmax or entry.xid in visible.in_progress)
            if not hidden:
                entry.apply(state)
        return state
