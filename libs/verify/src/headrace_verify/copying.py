"""
Consume, transform, produce with the offsets in the transaction: one turn of a copier.

Each record becomes one whose value is ``partition:offset`` of the record it was made from, so that
``checker_txn.check_exactly_once`` can say which are missing and which are there twice.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace import Consumer, Producer, TopicPartition
from headrace_verify.client import ChangedMind

RECORDS = 100
"""Of one transaction, at most."""

Copy = Callable[[Producer, Consumer, str], int]
"""Copies what is there to a target topic; how many records."""


def all_is_handled(consumer: Consumer, source: str) -> bool:
    """By what the group has committed."""
    partitions = [TopicPartition(source, number) for number in consumer.partitions_for(source)]
    ends, done = consumer.end_offsets(partitions), consumer.committed(partitions)
    return all((at := done.get(partition)) is not None and at.offset == end for partition, end in ends.items())


def copy_records(producer: Producer, consumer: Consumer, target: str) -> int:
    records = consumer.poll(timeout_ms=300, max_records=RECORDS)
    width = producer.partitions_for(target)
    for record in records:
        value = b"%d:%d" % (record.partition, record.offset)
        producer.send(target, value, partition=(record.partition + record.offset) % width)
    return len(records)


def copy_turn(producer: Producer, consumer: Consumer, target: str, copy: Copy, *, give_up: bool) -> int | None:
    """
    One transaction.

    Args:
        give_up: leave it in the middle, where there was something to copy.

    Returns:
        How many records were copied; None: it was given up.

    Raises:
        HeadraceError: ``then`` says what to do; "fenced": this copier is over.
    """
    try:
        with producer.transaction(consumer):
            copied = copy(producer, consumer, target)
            if copied and give_up:
                raise ChangedMind
    except ChangedMind:
        return None
    return copied
