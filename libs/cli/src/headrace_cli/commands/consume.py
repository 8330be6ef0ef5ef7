"""``headrace consume``: what is in a topic, and what comes."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli import completing
from headrace_cli.commanding import command
from headrace_cli.commands.starts import HELP as FROM_HELP
from headrace_cli.commands.starts import (
    UNTIL_HELP,
    At,
    Beginning,
    End,
    Last,
    Since,
    Start,
    check_span,
    parse_start,
    parse_until,
)
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.interrupts import end_if_interrupted
from headrace_cli.output import Output, format_count
from headrace_cli.printing import Printer, Waiting, selection
from headrace_cli.session import Session
from headrace_cli.terminal import hint, is_terminal

if TYPE_CHECKING:
    from headrace import Consumer, TopicPartition


class Isolation(StrEnum):
    """What is read of transactions."""

    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


AsMember = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Read as a member of this group: continue at its offsets, commit printed records",
        autocompletion=completing.groups,
    ),
]
_RESETS = {"beginning": "earliest", "end": "latest"}
POLL_MS = 500
POLL_RECORDS = 5_000


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app)(consume)


def consume(
    session: Session,
    *,
    topic: Annotated[str, typer.Argument(help="Topic to read", autocompletion=completing.topics)],
    start: Annotated[str | None, typer.Option("--from", help=FROM_HELP)] = None,
    until: Annotated[str | None, typer.Option("--until", help=UNTIL_HELP)] = None,
    count: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after so many records")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; repeatable")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key")] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Only records whose value this matches somewhere")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--format", "-f", help="json, or text with %t %p %o %T %k %s %h, \\n and \\t")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="As --until end; starts at the beginning by default")
    ] = False,
    base64: Annotated[bool, typer.Option("--base64", help="Print keys and values in base64")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print bytes as they are at a terminal too, escape sequences included")
    ] = False,
    group: AsMember = None,
    isolation: Annotated[
        Isolation,
        typer.Option(
            "--isolation-level", help="read_committed: nothing of transactions that are undecided or were aborted"
        ),
    ] = Isolation.UNCOMMITTED,
) -> None:
    """Print the records of a topic, from now on unless told otherwise; Ctrl+C ends it."""
    from headrace_cli.commands.lines import renderer

    render = renderer(
        template or ("%s\\n" if session.output is Output.TABLE else "json"),
        as_base64=base64,
        at_terminal=is_terminal(sys.stdout) and not raw,
    )
    if exit_at_end and until not in (None, "end"):
        raise typer.BadParameter("--exit-at-end is --until end; give one of them")
    last = "end" if exit_at_end else until
    printer = Printer(render, selection(key, grep), count, sys.stdout.buffer)
    settings: dict[str, Any] = {"isolation_level": isolation.value}
    try:
        if group is not None:
            settings |= {"group_id": group, "auto_offset_reset": _reset(start, partition, last)}
            with session.consumer(topic, enable_auto_commit=False, **settings) as consumer:
                signal.signal(signal.SIGTERM, _terminated)
                _as_member(consumer, printer, Waiting(topic), to_end=last is not None)
            return
        span = _span(start, last)
        with session.consumer(**settings) as consumer:
            partitions = _assign(consumer, topic, partition)
            _read(consumer, partitions, span, printer, Waiting(topic))
    finally:
        hint(f"{format_count(printer.printed, 'record')} of {topic} shown")


def _span(start: str | None, last: str | None) -> tuple[Start, Start | None]:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    begin = start or ("end" if last is None else "beginning")
    where = parse_start(begin, now_ms)
    if last is None:
        return where, None
    stop = parse_until(last, now_ms)
    check_span(where, stop, (begin, last))
    return where, stop


def _read(
    consumer: Consumer,
    partitions: list[TopicPartition],
    span: tuple[Start, Start | None],
    printer: Printer,
    waiting: Waiting,
) -> None:
    start, stop = span
    ends = {} if stop is None else ends_of(consumer, partitions, stop)
    now = consumer.end_offsets(partitions) if isinstance(start, Last) else {}
    seek(consumer, partitions, start, now)
    if isinstance(start, End) and stop is None:
        waiting.tell("that come from now on (--from beginning shows those that are there)")
    reading = set(partitions)
    while not printer.full:
        end_if_interrupted()
        done = {p for p in reading if p in ends and consumer.position(p) >= ends[p]}
        reading -= done
        if not reading:
            return
        if done:
            consumer.pause(*done)
        records = consumer.poll(POLL_MS, max_records=printer.room(POLL_RECORDS))
        if not records:
            waiting.tell()
        # What is behind an end was fetched with what is before it.
        printer.take([r for r in records if (end := ends.get(_partition_of(r))) is None or r.offset < end])


def ends_of(consumer: Consumer, partitions: list[TopicPartition], stop: Start) -> dict[TopicPartition, int]:
    """Where to stop: the first offset of each partition that is not wanted."""
    ends = consumer.end_offsets(partitions)
    match stop:
        case At(offset):
            return dict.fromkeys(partitions, offset)
        case Last(count):
            return {partition: end - count for partition, end in ends.items()}
        case Since(timestamp_ms):
            found = consumer.offsets_for_times(dict.fromkeys(partitions, timestamp_ms))
            return {p: end if (at := found[p]) is None else at.offset for p, end in ends.items()}
    return ends


def _reset(start: str | None, partition: list[int] | None, last: str | None) -> str:
    """Where a group begins that has committed nothing. Raises: CommandFailed for what a member cannot choose."""
    if partition:
        raise CommandFailed("a group gives partitions to its members; leave out --partition or --group", ExitCode.USAGE)
    if last not in (None, "end"):
        raise CommandFailed("with --group, --until takes end", ExitCode.USAGE)
    wanted = start or ("end" if last is None else "beginning")
    if wanted not in _RESETS:
        raise CommandFailed(
            "with --group, --from takes beginning or end, and counts where nothing is committed yet; "
            "`headrace group reset` moves a group",
            ExitCode.USAGE,
        )
    return _RESETS[wanted]


def _as_member(consumer: Consumer, printer: Printer, waiting: Waiting, *, to_end: bool) -> None:
    """Each record is printed before it is committed, so a kill repeats some and loses none."""
    ends: dict[TopicPartition, int] = {}
    while not printer.full:
        end_if_interrupted()
        records = consumer.poll(POLL_MS, max_records=printer.room(POLL_RECORDS))
        if records:
            passed = printer.take(records)
            consumer.commit({_partition_of(record): record.offset + 1 for record in passed})
        else:
            waiting.tell()
        if to_end:
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
