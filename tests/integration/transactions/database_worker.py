"""
The recipe for databases (docs/recipes-exactly-once.md) as a process that tests kill.

``database_worker.py BOOTSTRAP TOPIC GROUP DATABASE [STEP]``: DATABASE is the path of a SQLite file or ``postgres:DSN``.
With STEP (prepared, inserted, written, committed) the process kills itself when it first comes there; with ``stopped``
it stops itself (SIGSTOP) once it has prepared. It ends when all is handled. The rows have no key, so that a
record that was written twice shows.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from headrace import Consumer, PreparedTransaction, Producer, TopicPartition

RECORDS_PER_TRANSACTION = 50
TABLES = (
    "create table if not exists handled (topic text, part integer, position integer, value text)",
    "create table if not exists decided (token {bytes} primary key, done integer not null)",
)


class Database:
    """SQLite or PostgreSQL: the same statements."""

    def __init__(self, where: str) -> None:
        self._postgres = where.startswith("postgres:")
        self._connection: Any
        if self._postgres:
            self._connection = psycopg.connect(where.removeprefix("postgres:"), autocommit=True)
        else:
            self._connection = sqlite3.connect(where, timeout=30)
        with self.transaction():
            for table in TABLES:
                self.execute(table.format(bytes="bytea" if self._postgres else "blob"))

    def transaction(self) -> AbstractContextManager[Any]:
        """What is executed in it is there as one or not at all."""
        return self._connection.transaction() if self._postgres else self._connection

    def execute(self, statement: str, *values: object) -> Any:
        """One statement."""
        return self._connection.execute(statement.replace("?", "%s") if self._postgres else statement, values)


def work(bootstrap: str, topic: str, group: str, database: Database, die_at: str) -> None:
    """Until nothing is left."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}
    with Producer(bootstrap, transactional_id=group) as producer:
        left = producer.init_transactions()
        if left is not None:
            settle(producer, database, left)
        with Consumer(topic, bootstrap_servers=bootstrap, group_id=group, **settings) as consumer:
            while not all_is_handled(consumer, topic):
                step(producer, consumer, database, die_at)


def all_is_handled(consumer: Consumer, topic: str) -> bool:
    """A member has no partitions as long as a killed one is not given up; so it asks the group."""
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
    ends, done = consumer.end_offsets(partitions), consumer.committed(partitions)
    return all((at := done.get(partition)) is not None and at.offset == end for partition, end in ends.items())


def settle(producer: Producer, database: Database, token: PreparedTransaction) -> None:
    """Who puts the first row of a token into the table decides it."""
    with database.transaction():
        database.execute("insert into decided values (?, 0) on conflict do nothing", bytes(token))
    (done,) = database.execute("select done from decided where token = ?", bytes(token)).fetchone()
    if done:
        producer.commit_prepared(token)
    else:
        producer.abort_prepared(token)


def step(producer: Producer, consumer: Consumer, database: Database, die_at: str) -> None:
    """Some records into the database."""
    records = consumer.poll(timeout_ms=1_000, max_records=RECORDS_PER_TRANSACTION)
    if not records:
        return
    producer.begin_transaction()
    positions = {(record.topic, record.partition): record.offset + 1 for record in records}
    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
    token = producer.prepare_transaction()
    reached("prepared", die_at)
    with database.transaction():
        database.execute("insert into decided values (?, 1)", bytes(token))
        reached("inserted", die_at)
        for record in records:
            row = (record.topic, record.partition, record.offset, record.value.decode())
            database.execute("insert into handled values (?, ?, ?, ?)", *row)
    reached("written", die_at)
    producer.commit_prepared(token)
    reached("committed", die_at)


def reached(step_name: str, die_at: str) -> None:
    """Die or stop here, if that is asked for."""
    if step_name == "prepared" and die_at == "stopped":
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if step_name == die_at:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _, address, name, member, place, *dies = sys.argv
    work(address, name, member, Database(place), dies[0] if dies else "")
