"""
Consume, transform, produce as a process that tests kill: ``pipeline.py BOOTSTRAP SOURCE TARGET NAME TIMEOUT_MS``.

NAME is the group and the transactional id. Each transaction writes its records, and into *each* partition of TARGET a
summary of all that it writes, so that a transaction of which only a part is seen shows. It writes a line to standard
output per transaction, and ends when the group has handled all of SOURCE; with 3 when it is fenced.
"""

from __future__ import annotations

import json
import sys

from headrace import Consumer, HeadraceError, Producer, TopicPartition

RECORDS = 20
FENCED = 3


def all_is_handled(consumer: Consumer, source: str) -> bool:
    """By what the group has committed."""
    partitions = [TopicPartition(source, number) for number in consumer.partitions_for(source)]
    ends, done = consumer.end_offsets(partitions), consumer.committed(partitions)
    return all((at := done.get(partition)) is not None and at.offset == end for partition, end in ends.items())


def step(producer: Producer, consumer: Consumer, source: str, target: str) -> bool:
    """One transaction; false: all is handled."""
    with producer.transaction(consumer):
        records = consumer.poll(timeout_ms=300, max_records=RECORDS)
        if records:
            summary = json.dumps({"summary": [record.value.decode() for record in records]}).encode()
            for partition in range(producer.partitions_for(target)):
                producer.send(target, summary, partition=partition)
            for record in records:
                producer.send(target, record.value, partition=record.partition)
    if records:
        print(len(records), flush=True)
        return True
    return not all_is_handled(consumer, source)


def main(bootstrap: str, source: str, target: str, name: str, timeout_ms: int) -> int:
    """Until all is handled."""
    reading = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}
    with (
        Producer(bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms) as producer,
        Consumer(source, bootstrap_servers=bootstrap, group_id=name, **reading) as consumer,
    ):
        more = True
        while more:
            try:
                more = step(producer, consumer, source, target)
            except HeadraceError as error:
                print(f"{type(error).__name__} {error.then}: {error}", file=sys.stderr, flush=True)
                if error.then == "fenced":
                    return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5], int(sys.argv[5])))
