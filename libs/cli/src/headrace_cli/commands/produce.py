"""``headrace produce``: lines, files or JSON into a topic."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli import completing
from headrace_cli.commanding import command, pairs
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, bytes_for_people, format_count
from headrace_cli.session import Session
from headrace_cli.terminal import Progress, hint, is_terminal

if TYPE_CHECKING:
    from headrace_cli.commands.lines import Outgoing

# So that the topic's max.message.bytes is what bounds a record.
REQUEST_BYTES_MAX = 16 << 20


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app)(produce)


def produce(
    session: Session,
    *,
    topic: Annotated[str, typer.Argument(help="Topic to write to", autocompletion=completing.topics)],
    files: Annotated[list[Path] | None, typer.Argument(help="Files of lines; standard input without any")] = None,
    value: Annotated[list[str] | None, typer.Option("--value", "-v", help="Send this; repeatable")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all records")] = None,
    key_separator: Annotated[str | None, typer.Option(help="Lines are KEY SEPARATOR VALUE")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="On all records")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Lines are JSON, as `consume -f json` prints")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one value, not lines")] = False,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Instead of by key")] = None,
    acks: Annotated[str, typer.Option(help="all, 1 or 0")] = "all",
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd")] = "none",
    linger_ms: Annotated[
        float, typer.Option("--linger", min=0, help="How long a batch waits for more records, in ms")
    ] = 5,
    timeout: Annotated[float, typer.Option(min=1, help="How long the last ones may take, in seconds")] = 60,
) -> None:
    """Write records to a topic, one for each line."""
    if key is not None and key_separator is not None:
        raise typer.BadParameter("give --key or --key-separator, not both")
    if key_separator == "":
        raise typer.BadParameter("--key-separator cannot be empty")
    headers: list[tuple[str, bytes | None]] = [
        (name, os.fsencode(text)) for one in header or [] for name, text in pairs([one], "--header NAME=VALUE").items()
    ]
    separator = os.fsencode(key_separator) if key_separator else None
    reader = LineReader(None if key is None else os.fsencode(key), separator, headers, json_lines)
    settings = {
        "acks": acks,
        "compression_type": compression,
        "linger_ms": linger_ms,
        "max_request_size": REQUEST_BYTES_MAX,
    }
    with ExitStack() as stack:
        if value:
            records = reader.values(value)
        elif files and whole:
            records = reader.whole(files)
        else:
            sources = [(str(file), stack.enter_context(file.open("rb"))) for file in files or []]
            records = reader.lines(sources or [("standard input", _standard_input())])
            if not sources and is_terminal(sys.stdin):
                form = f"KEY{key_separator}VALUE" if key_separator else "JSON" if json_lines else "its value"
                records = _after_hint(
                    f"each line is a record of {topic}: type {form}, then Enter; Ctrl+D ends", records
                )
        _send_all(session, topic, records, partition, settings, timeout)


def _after_hint(text: str, records: Iterator[Outgoing]) -> Iterator[Outgoing]:
    """Not before the first is wanted: until then the topic may turn out to be missing."""
    hint(text)
    yield from records


def _standard_input() -> Iterable[bytes]:
    if sys.stdin is None:  # closed, as by `<&-`
        raise CommandFailed("standard input is closed", ExitCode.USAGE, "Give --value, or files.")
    return sys.stdin.buffer


class LineReader:
    """Turns what the user gave into records."""

    def __init__(
        self, key: bytes | None, separator: bytes | None, headers: list[tuple[str, bytes | None]], json_lines: bool
    ) -> None:
        self._key = key
        self._separator = separator
        self._headers = headers
        self._json = json_lines

    def values(self, texts: list[str]) -> Iterator[Outgoing]:
        """From the command line."""
        for number, text in enumerate(texts, 1):
            yield self._record(os.fsencode(text), f"value {number}")

    def whole(self, files: list[Path]) -> Iterator[Outgoing]:
        """One record for each file."""
        from headrace_cli.commands.lines import Outgoing

        for file in files:
            yield Outgoing(self._key, file.read_bytes(), self._headers)

    def lines(self, sources: Sequence[tuple[str, Iterable[bytes]]]) -> Iterator[Outgoing]:
        """One record for each line of these files; nothing of a line but its end is changed."""
        for name, source in sources:
            for number, line in enumerate(source, 1):
                yield self._record(line.removesuffix(b"\n").removesuffix(b"\r"), f"line {number} of {name}")

    def _record(self, line: bytes, where: str) -> Outgoing:
        from headrace_cli.commands.lines import Outgoing, parse_json

        if self._json:
            record = parse_json(line, where)
            return record._replace(key=record.key or self._key, headers=[*self._headers, *record.headers])
        if self._separator is None:
            return Outgoing(self._key, line, self._headers)
        key, found, value = line.partition(self._separator)
        if not found:
            raise CommandFailed(
                f"{where} has no {os.fsdecode(self._separator)!r}",
                ExitCode.USAGE,
                "Records before it were sent. Give another --key-separator, or leave it out.",
            )
        return Outgoing(key, value, self._headers)


def _send_all(
    session: Session,
    topic: str,
    records: Iterator[Outgoing],
    partition: int | None,
    settings: dict[str, Any],
    timeout: float,
) -> None:
    from headrace_cli.acknowledged import Acknowledged

    acknowledged = Acknowledged()
    begun = time.monotonic()
    progress = Progress()
    sent = size = 0
    try:
        with session.producer(on_delivery=acknowledged.note, **settings) as producer:
            producer.partitions_for(topic)  # a topic that is missing is told though nothing is to be sent
            for record in records:
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=record.headers or None,
                    partition=partition if partition is not None else record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                sent += 1
                size += len(record.value or b"") + len(record.key or b"")
                if progress.due():
                    progress.tell(f"{acknowledged.records:,} of {sent:,} records acknowledged")
                acknowledged.raise_first()
            producer.flush(timeout)
    except KeyboardInterrupt:
        progress.clear()
        hint(f"interrupted: {acknowledged.records:,} of {format_count(sent, 'record')} acknowledged")
        raise
    progress.clear()
    acknowledged.raise_first()
    seconds = time.monotonic() - begun
    if session.output is Output.TABLE:
        records_are = f"{format_count(sent, 'record')} ({bytes_for_people(size)}) {'is' if sent == 1 else 'are'}"
        session.say(f"{records_are} in {topic}, after {seconds:.2f} s")
    else:
        session.show({"topic": topic, "records": sent, "bytes": size, "seconds": round(seconds, 3)})
