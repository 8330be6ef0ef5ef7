"""``headrace audit``: who did what, from the topic ``__audit`` or from files, and whether it is as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace_cli.commanding import command
from headrace_cli.commands.consume import seek
from headrace_cli.commands.starts import HELP as FROM_HELP
from headrace_cli.commands.starts import Beginning, Last, Start, parse_start
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.interrupts import end_if_interrupted
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session
from headrace_common.core.errors import UnknownTopicOrPartition
from headrace_common.runtime.audit_files import SPOOL, SUFFIX

if TYPE_CHECKING:
    from headrace import Consumer
    from headrace_common.core.audit.verification import Verdict

HELP = "The audit: who did what, and whether it is as it was written"

TOPIC: Final = "__audit"
_FIRST: Final = "-000000000001"
"""How the name of the first file of a directory ends."""
_POLL_MS: Final = 500
_POLL_RECORDS: Final = 5_000
_LAST_MAX: Final = 10_000
_COLUMNS: Final = ("time", "node", "kind", "actor", "source", "operation", "resource", "status", "count")

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE...]", help="Files or directories of audit_dir, instead of the topic __audit"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace audit``."""
    command(app, needs_cluster=False)(verify)
    command(app)(tail)
    command(app, needs_cluster=False)(search)


def verify(session: Session, files: Files = None) -> None:
    """Prove that events are as they were written: none changed, removed or added. Ends with 1 where one was."""
    from headrace_common.core.audit.announcing import announced_in
    from headrace_common.core.audit.verification import Verifier

    source = Source(session, files)
    lines = list(source.read(Beginning()))
    try:
        verifier = Verifier(announced_in(lines), _check(), source.kept_since_ms)
    except ImportError:
        raise CommandFailed(
            "signatures are checked with the package cryptography", ExitCode.USAGE, "pip install 'headrace[login]'"
        ) from None
    for line in lines:
        verifier.take(line)
    _tell(session, verifier.finish())


def tail(
    session: Session,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, max=_LAST_MAX, help="The last N events first")
    ] = 10,
) -> None:
    """Print the last events, then more as they come; Ctrl+C ends it."""
    source = Source(session, None)
    with session.consumer() as consumer:
        if last := source.last(consumer, lines):
            _print(session, last)
        for line in source.follow(consumer):
            _print(session, [json.loads(line)])


def search(
    session: Session,
    files: Files = None,
    *,
    actor: Annotated[str | None, typer.Option("--actor", metavar="PRINCIPAL", help="Who, as User:alice")] = None,
    operation: Annotated[
        str | None,
        typer.Option("--operation", metavar="NAME", help="An operation as DELETE, or an RPC as DeleteTopics"),
    ] = None,
    resource: Annotated[str | None, typer.Option("--resource", metavar="NAME", help="On what, by its name")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="As access_changed, operation_refused, administered")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help=FROM_HELP)] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Nothing after this time")] = None,
) -> None:
    """Print events by who, what and when; the oldest of a node first."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    where = parse_start(start or "beginning", now_ms)
    since_ms = getattr(where, "timestamp_ms", None)
    until_ms = None if until is None else getattr(parse_start(until, now_ms), "timestamp_ms", None)
    found = []
    for line in Source(session, files).read(where):
        event = json.loads(line)
        if "signature" in event or not _fits(event, actor, operation, resource, kind):
            continue
        if (since_ms is None or event["time"] >= since_ms) and (until_ms is None or event["time"] <= until_ms):
            found.append(event)
    found.sort(key=lambda event: event["time"])
    _print(session, found)


def _fits(
    event: dict[str, Any], actor: str | None, operation: str | None, resource: str | None, kind: str | None
) -> bool:
    about = event["resource"] or {"name": None}
    operations = {str(event["operation"]).lower(), event["rpc"].lower(), event["rpc"].partition("/")[2].lower()}
    return (
        (actor is None or event["actor"]["principal"] == actor)
        and (operation is None or operation.lower() in operations)
        and (resource is None or about["name"] == resource)
        and (kind is None or event["kind"] == kind)
    )


def _print(session: Session, events: list[dict[str, Any]]) -> None:
    if session.output is not Output.TABLE:
        for event in events:
            typer.echo(json.dumps(event, sort_keys=True))
        return
    session.show([_row(event) for event in events if "signature" not in event], *_COLUMNS, empty="no such event")


def _row(event: dict[str, Any]) -> dict[str, Any]:
    about = event["resource"]
    return {
        "time": datetime.fromtimestamp(event["time"] / 1_000, UTC).isoformat(timespec="milliseconds"),
        "node": event["node"],
        "kind": event["kind"],
        "actor": event["actor"]["principal"],
        "source": event["source"] or None,
        "operation": event["rpc"] or event["operation"],
        "resource": None if about is None else f"{about['type'].lower()} {about['name']}",
        "status": event["status"] or "begun",
        "count": event["count"],
    }


def _tell(session: Session, verdict: Verdict) -> None:
    findings = [
        {
            "found": one.found.value,
            "start": None if one.start is None else str(one.start),
            "first": one.first,
            "last": one.last,
        }
        for one in verdict.findings
    ]
    if session.output is Output.TABLE:
        if findings:
            session.show(findings, "found", "start", "first", "last")
        more = f", and {verdict.findings_more} more findings" if verdict.findings_more else ""
        session.say(
            f"{format_count(verdict.events, 'event')}, {format_count(verdict.seals, 'seal')}: "
            + ("all as they were written" if verdict.proven else "CHANGED" if verdict.changed else "not all is proven")
            + more
        )
    else:
        session.show(
            {
                "proven": verdict.proven,
                "changed": verdict.changed,
                "events": verdict.events,
                "seals": verdict.seals,
                "repeats": verdict.repeats,
                "findings": findings,
                "findings_more": verdict.findings_more,
            }
        )
    if verdict.changed:
        raise CommandFailed("the audit is not what was written", ExitCode.FAILED)


def _check() -> Any:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    def check(key: bytes, message: bytes, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    return check


class Source:
    """Lines of the audit: from files, each directory's in order; else from the topic, partition by partition."""

    def __init__(self, session: Session, files: list[Path] | None) -> None:
        self._session = session
        self._files = files
        self.kept_since_ms: int | None = None
        """What was written before it may be deleted; None: nothing is. Known when all lines were read."""
        self._cut = False

    def read(self, start: Start) -> Iterator[bytes]:
        if self._files:
            for path in self._files:
                yield from self._of_file(path)
            return
        with self._session.consumer() as consumer:
            yield from self._of_topic(consumer, start)

    def lacks(self, time_ms: int) -> bool:
        """Whether events of after this time, from which on it was read, may be deleted. Known when all was read."""
        if self._files:
            return self.kept_since_ms is not None and self.kept_since_ms > time_ms
        return self._cut

    def last(self, consumer: Consumer, count: int) -> list[dict[str, Any]]:
        """The newest events of the topic, the oldest first; ``follow`` goes on behind them."""
        lines = self._of_topic(consumer, Last(2 * count))  # of some events each has a seal behind it
        events = [event for event in map(json.loads, lines) if "signature" not in event]
        events.sort(key=lambda event: event["time"])
        return events[-count:] if count else []

    def follow(self, consumer: Consumer) -> Iterator[bytes]:
        """What comes, for ever."""
        while True:
            end_if_interrupted()
            for record in consumer.poll(_POLL_MS, max_records=_POLL_RECORDS):
                if record.value is not None:
                    yield record.value

    def _of_file(self, path: Path) -> Iterator[bytes]:
        from headrace_common.runtime.audit_files import read_lines

        paths: Iterable[Path] = [path]
        if path.is_dir():
            paths = sorted(one for one in path.rglob(f"*{SUFFIX}") if SPOOL not in one.relative_to(path).parts)
        directory: Path | None = None
        for one in paths:
            try:
                lines = list(read_lines(one))
            except OSError as error:
                raise CommandFailed(f"cannot read {one}: {error.strerror}", ExitCode.USAGE) from error
            if one.parent != directory and lines and not one.stem.endswith(_FIRST):
                self._kept_since(lines[0])
            directory = one.parent
            yield from lines

    def _of_topic(self, consumer: Consumer, start: Start) -> Iterator[bytes]:
        from headrace import TopicPartition

        try:
            numbers = sorted(consumer.partitions_for(TOPIC))
        except UnknownTopicOrPartition:
            raise CommandFailed(
                f"this cluster has no topic {TOPIC}: its services keep no audit there (setting audit_to)",
                ExitCode.NOT_FOUND,
                "A local cluster keeps files: give `search` and `verify` their directory, as .headrace/audit.",
            ) from None
        partitions = [TopicPartition(TOPIC, number) for number in numbers]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        seek(consumer, partitions, start, ends)
        firsts = consumer.beginning_offsets(partitions)
        self._cut = any(firsts[one] > 0 and consumer.position(one) <= firsts[one] for one in partitions)
        found: dict[int, list[bytes]] = {one.partition: [] for one in partitions}
        while True:
            end_if_interrupted()
            if all(consumer.position(one) >= ends[one] for one in partitions):
                break
            for record in consumer.poll(_POLL_MS, max_records=_POLL_RECORDS):
                if record.value is None:
                    continue
                if not found[record.partition] and record.offset > 0:
                    self._kept_since(record.value)
                found[record.partition].append(record.value)
        for number in sorted(found):
            yield from found[number]

    def _kept_since(self, line: bytes) -> None:
        try:
            self.kept_since_ms = max(self.kept_since_ms or 0, int(json.loads(line)["time"]))
        except (ValueError, KeyError, TypeError):
            return  # whoever verifies says so
