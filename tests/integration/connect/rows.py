"""Connectors that the tests run in processes of their own."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_connect import Chunk, Guarantee, PartitionTaken, Position, Rows, RowsRefused, Sink, Source, Split
from headrace_connect.plugin import Checked, TopicPartition, Verifier

CHUNK = 100


@dataclass(frozen=True, slots=True)
class NumbersSettings:
    """Of the source."""

    rows: int
    """How many there are."""
    splits: int = 2
    """They are dealt out to so many."""
    fails_once: str = ""
    """This file is written when it fails, which it does behind its first chunk; it does not where the file is there."""


class Numbers(Source[NumbersSettings]):
    """Numbers, in chunks."""

    def splits(self) -> Sequence[Split]:
        return [Split(f"part-{number}", {"first": number}) for number in range(self.settings.splits)]

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        at, step = after["at"] if after else split.detail["first"], self.settings.splits
        while at < self.settings.rows:
            numbers = range(at, min(at + CHUNK * step, self.settings.rows), step)
            at += CHUNK * step
            yield Chunk([{"n": n} for n in numbers], {"at": at}, keys=[f"k{n}" for n in numbers])
            self._fail_once()
        while True:
            yield Chunk([], {"at": at}, drained=True)

    def _fail_once(self) -> None:
        once = self.settings.fails_once
        if once and not Path(once).exists():
            Path(once).touch()
            raise ValueError("broken")


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Of the sink."""

    file: str
    """Of the database."""
    bad: int = -1
    """The number that the table does not take; negative: it takes all."""


class Table(Sink[TableSettings]):
    """Numbers into a table of SQLite that has no key, with positions beside them."""

    guarantee = Guarantee.POSITIONS

    def start(self) -> None:
        self.db = sqlite3.connect(self.settings.file, isolation_level=None, timeout=30)
        self.db.execute("pragma journal_mode=wal")
        self.db.execute("create table if not exists numbers (n integer, position integer)")
        self.db.execute(
            "create table if not exists positions (topic text, partition integer, position integer, epoch integer,"
            " primary key (topic, partition))"
        )
        self.db.execute("create table if not exists tokens (token blob primary key, done integer)")
        self.epochs: dict[TopicPartition, int] = {}
        self.at: dict[TopicPartition, int] = {}
        self.buffer: list[tuple[int, int]] = []

    def stop(self) -> None:
        self.db.close()

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        self.buffer.clear()
        self.db.execute("begin immediate")
        for tp in partitions:
            self.db.execute(
                "insert into positions values (?, ?, -1, ?)"
                " on conflict do update set epoch = max(epoch, excluded.epoch)",
                (tp.topic, tp.partition, epoch),
            )
            position, holder = self.db.execute(
                "select position, epoch from positions where topic = ? and partition = ?", (tp.topic, tp.partition)
            ).fetchone()
            if holder > epoch:
                self.db.execute("rollback")
                raise PartitionTaken([tp])
            self.epochs[tp], self.at[tp] = epoch, position
        self.db.execute("commit")
        return {tp: self.at[tp] for tp in partitions if self.at[tp] >= 0}

    def write(self, rows: Rows) -> None:
        numbers = rows.table.column("n").to_pylist()
        if self.settings.bad in numbers:
            raise RowsRefused({numbers.index(self.settings.bad): "it is not taken"})
        self.buffer += zip(numbers, rows.offsets.to_pylist(), strict=True)

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        self.db.execute("begin immediate")
        try:
            if token is not None:
                self.db.execute("insert into tokens values (?, 1)", (token,))
            self.db.executemany("insert into numbers values (?, ?)", self.buffer)
            for tp, position in positions.items():
                changed = self.db.execute(
                    "update positions set position = ?"
                    " where topic = ? and partition = ? and epoch = ? and position = ?",
                    (position, tp.topic, tp.partition, self.epochs[tp], self.at[tp]),
                )
                if not changed.rowcount:
                    raise PartitionTaken([tp])
            self.db.execute("commit")
        except BaseException as error:
            self.db.execute("rollback")
            if isinstance(error, sqlite3.IntegrityError):
                raise PartitionTaken(positions) from error
            raise
        self.at |= positions
        self.buffer.clear()

    def settle(self, token: bytes) -> bool:
        self.db.execute("insert into tokens values (?, 0) on conflict do nothing", (token,))
        return bool(self.db.execute("select done from tokens where token = ?", (token,)).fetchone()[0])

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        self.buffer.clear()


class Lines(Sink[TableSettings]):
    """Numbers into a file, which keeps no positions."""

    def write(self, rows: Rows) -> None:
        numbers = rows.table.column("n").to_pylist()
        if self.settings.bad in numbers:
            raise RowsRefused({numbers.index(self.settings.bad): "it is not taken"})
        with Path(self.settings.file).open("a") as file:
            file.writelines(f"{n}\n" for n in numbers)


@dataclass(frozen=True, slots=True)
class SlowlySettings:
    """Of ``Slowly``."""

    directory: str
    """Each process that compares writes a file there, whose name is its id; the file ``go`` has it end."""
    position: int
    """That the target has of each partition."""


class Slowly(Sink[SlowlySettings]):
    """Is compared with its topics until somebody lets it end; writes nothing."""

    def write(self, rows: Rows) -> None:
        """Nowhere."""

    def verifier(self) -> Verifier:
        return _Slowly(self.settings)


class _Slowly:
    learns = False

    def __init__(self, settings: SlowlySettings) -> None:
        self._settings = settings

    def begin(self, partitions: Sequence[TopicPartition], *, repair: bool) -> Mapping[TopicPartition, int]:
        del repair
        return dict.fromkeys(partitions, self._settings.position)

    def learn(self, rows: Rows) -> None:
        """Never called."""

    def check(self, partition: TopicPartition, rows: Sequence[Rows], first: int, end: int) -> Checked:
        directory = Path(self._settings.directory)
        (directory / str(os.getpid())).touch()
        while first and not (directory / "go").exists():
            time.sleep(0.01)
        return Checked(sum(map(len, rows)))

    def finish(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""
