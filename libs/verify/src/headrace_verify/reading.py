"""The end of a run: everything is read from the beginning, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from headrace import Consumer, HeadraceError, Record, TopicPartition
from headrace.errors import ErrorCode, Kind
from headrace_verify.checker_history import NOTHING, F, Type
from headrace_verify.client import Client

LOOK_S = 0.5


class NotReadable(HeadraceError):
    """Not all could be read in the time given: what is there cannot be judged."""

    kind, code = Kind.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT


def partitions_of(consumer: Consumer, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for(topic))]


def all_stable(servers: Sequence[str], topics: Sequence[str]) -> bool:
    """No open transaction holds readers of committed records back: last stable offsets are the ends."""
    with (
        Consumer(bootstrap_servers=servers, isolation_level="read_committed") as stable,
        Consumer(bootstrap_servers=servers, isolation_level="read_uncommitted") as whole,
    ):
        partitions = [one for topic in topics for one in partitions_of(whole, topic)]
        return stable.end_offsets(partitions) == whole.end_offsets(partitions)


def note_everything(client: Client, seconds: float) -> None:
    """
    All keys from the beginning to their ends, as polls of this process.

    Raises:
        NotReadable: it did not get there in ``seconds``.
    """
    deadline = time.monotonic() + seconds
    ends: dict[TopicPartition, int] = {}
    while not ends:
        try:
            client.choose(begin=True)
            ends = client.consumer.end_offsets(client.partitions)
        except HeadraceError as error:
            _check(deadline, f"{client.topic} cannot be asked for its ends: {error}")
    while not _at(client.consumer, ends):
        _check(deadline, f"{client.topic} could not be read to its end in {seconds:g} s")
        client.history.note(Type.INVOKE, F.POLL, (NOTHING,))
        try:
            found = client.poll(1_000, 5_000)
        except HeadraceError as error:
            client.tell(error, "last reading")
            client.history.note(Type.FAIL, F.POLL)
        else:
            client.history.note(Type.OK, F.POLL, (found,))


def read_records(servers: Sequence[str], topic: str, seconds: float) -> Iterator[Record]:
    """
    All committed records of a topic, partition by partition in the order of offsets.

    Raises:
        NotReadable: it did not get to the ends in ``seconds``.
    """
    deadline = time.monotonic() + seconds
    with Consumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        partitions = partitions_of(consumer, topic)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while not _at(consumer, ends):
            _check(deadline, f"{topic} could not be read to its end in {seconds:g} s")
            yield from consumer.poll(timeout_ms=1_000, max_records=5_000)


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """
    Whether it is true within ``seconds``; a cluster that cannot answer is asked again.

    Raises:
        NotReadable: the cluster never answered.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if true():
                return True
            why: HeadraceError | None = None
        except HeadraceError as error:
            why = error
        if time.monotonic() >= deadline:
            if why is not None:
                raise NotReadable(f"the cluster did not answer in {seconds:g} s: {why}") from why
            return False
        time.sleep(LOOK_S)


def _at(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    return all(consumer.position(one) >= end for one, end in ends.items())


def _check(deadline: float, text: str) -> None:
    if time.monotonic() > deadline:
        raise NotReadable(text)
