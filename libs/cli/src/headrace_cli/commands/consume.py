"""``headrace consume``: what is in a topic, and what comes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commanding import command
from headrace_cli.commands.starts import HELP as FROM_HELP
from headrace_cli.commands.starts import At, Beginning, End, Last, Since, Start, parse_start
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace import Consumer, Record, TopicPartition


class Isolation(StrEnum):
    """What is read of transactions."""

    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


_RESETS = {"beginning": "earliest", "end": "latest"}
POLL_MS = 500
POLL_RECORDS = 5_000


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app)(consume)


def consume(
    session: Session,
    *,
    topic: Annotated[str, typer.Argument(help="What to read")],
    start: Annotated[str | None, typer.Option("--from", help=FROM_HELP)] = None,
    count: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after so many records")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be given often")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--format", "-f", help="json, or text with %t %p %o %T %k %s %h, \\n and \\t")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end; starts at the beginning unless told otherwise")
    ] = False,
    base64: Annotated[bool, typer.Option("--base64", help="Print keys and values in base64")] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="As a member of this group: goes on where it was, commits what was printed"),
    ] = None,
    isolation: Annotated[
        Isolation,
        typer.Option(
            "--isolation-level", help="read_committed: nothing of transactions that are undecided or were aborted"
        ),
    ] = Isolation.UNCOMMITTED,
) -> None:
    """Print the records of a topic, from now on unless told otherwise; Ctrl+C ends it."""
    from headrace_cli.commands.lines import renderer

    render = renderer(template or ("%s\\n" if session.output is Output.TABLE else "json"), as_base64=base64)
    settings: dict[str, Any] = {"isolation_level": isolation.value}
    if group is not None:
        settings |= {"group_id": group, "auto_offset_reset": _reset(start, partition, exit_at_end)}
        _as_member(session, topic, settings, render, count, exit_at_end)
        return
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    where = parse_start(start or ("beginning" if exit_at_end else "end"), now_ms)
    out = sys.stdout.buffer
    left = count
    with session.consumer(**settings) as consumer:
        partitions = _assign(consumer, topic, partition)
        ends = consumer.end_offsets(partitions) if exit_at_end or isinstance(where, Last) else {}
        seek(consumer, partitions, where, ends)
        while left is None or left > 0:
            if exit_at_end and all(consumer.position(p) >= ends[p] for p in partitions):
                break
            records = consumer.poll(POLL_MS, max_records=min(left or POLL_RECORDS, POLL_RECORDS))
            if exit_at_end:
                # What arrives while we read comes after the end that was meant.
                records = [r for r in records if r.offset < ends[_partition_of(r)]]
            if records:
                out.write(b"".join(map(render, records)))
                out.flush()
            if left is not None:
                left -= len(records)


def _reset(start: str | None, partition: list[int] | None, exit_at_end: bool) -> str:
    """Where a group begins that has committed nothing. Raises: CommandFailed for what a member cannot choose."""
    if partition:
        raise CommandFailed("a group gives partitions to its members; leave out --partition or --group", ExitCode.USAGE)
    wanted = start or ("beginning" if exit_at_end else "end")
    if wanted not in _RESETS:
        raise CommandFailed(
            "with --group, --from takes beginning or end, and counts where nothing is committed yet; "
            "`headrace group reset` moves a group",
            ExitCode.USAGE,
        )
    return _RESETS[wanted]


def _as_member(
    session: Session,
    topic: str,
    settings: dict[str, Any],
    render: Callable[[Record], bytes],
    count: int | None,
    exit_at_end: bool,
) -> None:
    """Each record is printed before it is committed, so a kill repeats some and loses none."""
    out = sys.stdout.buffer
    signal.signal(signal.SIGTERM, _terminated)
    left = count
    ends: dict[TopicPartition, int] = {}
    with session.consumer(topic, enable_auto_commit=False, **settings) as consumer:
        while left is None or left > 0:
            records = consumer.poll(POLL_MS, max_records=min(left or POLL_RECORDS, POLL_RECORDS))
            if records:
                out.write(b"".join(map(render, records)))
                out.flush()
                consumer.commit()
            if left is not None:
                left -= len(records)
            if exit_at_end:
                held = consumer.assignment()
                ends.update(consumer.end_offsets(held - ends.keys()))
                if held and all(consumer.position(p) >= ends[p] for p in held):
                    break


def _terminated(*_: object) -> None:
    """Ends the command in order, so that the member leaves its group and others take over at once."""
    raise SystemExit(128 + signal.SIGTERM)


def _assign(consumer: Consumer, topic: str, wanted: list[int] | None) -> list[TopicPartition]:
    """Raises: CommandFailed when the topic has no such partition."""
    from headrace import TopicPartition

    there = sorted(consumer.partitions_for(topic))
    missing = sorted(set(wanted or []) - set(there))
    if missing:
        raise CommandFailed(
            f"{topic} has partitions 0 to {len(there) - 1}, not {', '.join(map(str, missing))}", ExitCode.NOT_FOUND
        )
    partitions = [TopicPartition(topic, number) for number in (sorted(set(wanted)) if wanted else there)]
    consumer.assign(partitions)
    return partitions


def _partition_of(record: Any) -> TopicPartition:
    from headrace import TopicPartition

    return TopicPartition(record.topic, record.partition)


def seek(consumer: Consumer, partitions: list[TopicPartition], start: Start, ends: dict[TopicPartition, int]) -> None:
    """Go there; an offset that does not exist is the nearest that does."""
    match start:
        case Beginning():
            consumer.seek_to_beginning(*partitions)
        case End():
            consumer.seek_to_end(*partitions)
        case Since(timestamp_ms):
            consumer.seek_to_timestamp(timestamp_ms, *partitions)
        case At(offset):
            firsts, lasts = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for partition in partitions:
                consumer.seek(partition, min(max(offset, firsts[partition]), lasts[partition]))
        case Last(count):
            firsts = consumer.beginning_offsets(partitions)
            for partition in partitions:
                consumer.seek(partition, max(ends[partition] - count, firsts[partition]))
