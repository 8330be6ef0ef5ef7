"""``headrace debug``: what is stored, as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_cli import completing
from headrace_cli.commanding import command
from headrace_cli.commands.local import DataDirOption
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, bytes_for_people, format_count, show
from headrace_cli.session import DEFAULT_DATA_DIR, Session
from headrace_cli.terminal import hint, is_terminal

OFFLINE_SECONDS = 300
"""How long reading a data directory may take."""

HELP = "Look at stored data directly"
OFFLINE_COLUMNS = ("log_id", "topic_id", "partition", "log_start_offset", "log_end_offset", "high_watermark_checkpoint")


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace debug``."""
    command(app, needs_cluster=False)(dump_log)
    command(app)(metadata)
    command(app, needs_cluster=False)(bundle)


def dump_log(
    session: Session,
    *,
    topic: Annotated[str | None, typer.Argument(help="Only this topic")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Of a stopped broker; else running brokers are asked"),
    ] = None,
    broker: Annotated[int | None, typer.Option("--broker", help="Only this one")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this one")] = None,
    segments: Annotated[bool, typer.Option("--segments", help="Also segments")] = False,
    batches: Annotated[int, typer.Option("--batches", min=0, help="With --data-dir: so many batch headers a log")] = 0,
) -> None:
    """The logs on the brokers: offsets, sizes, state; from running brokers, or from a stopped broker's directory."""
    from headrace_cli import admin_view, log_view
    from headrace_common.runtime.clock import SystemClock

    if data_dir is not None:
        rows = _offline(data_dir, topic, partition, batches)
        if session.output is Output.TABLE and (segments or batches):
            show(rows, Output.YAML)
        else:
            session.show_rows("logs", rows, *OFFLINE_COLUMNS, empty="no logs there")
        return
    with session.admin() as admin:
        found = admin_view.describe_logs(admin, broker, topic, partition, segments)
    if session.output is not Output.TABLE:
        session.show(found)
        return
    session.show(log_view.logs_for_people(found["logs"], segments, SystemClock().now_ms()), empty="no such logs")


def metadata(
    session: Session,
    topics: Annotated[list[str] | None, typer.Argument(help="Only these", autocompletion=completing.topics)] = None,
) -> None:
    """The metadata that a broker gives to clients. Ends with 3 where it does not have one of the topics."""
    from headrace_cli import admin_view
    from headrace_common.core.problems import error_of_problem

    data = admin_view.metadata(session.cluster, topics or [])
    show(data, Output.YAML if session.output is Output.TABLE else session.output)
    wrong = [topic for topic in data["topics"] if topic["error"] is not None]
    if wrong:
        raise error_of_problem(wrong[0]["error"])


def bundle(
    session: Session,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Default: headrace-bundle-TIME.tar.gz here; -: stdout"),
    ] = None,
    data_dir: DataDirOption = Path(DEFAULT_DATA_DIR),
) -> None:
    """
    One file with what somebody needs who looks for the cause of a fault: status, settings, metadata, versions, and of a
    local cluster logs and metrics.

    Nothing of what records hold is in it, and secrets are cut out; names of topics, groups and hosts are in it.
    """
    from datetime import UTC, datetime

    from headrace_cli import bundle_parts
    from headrace_cli.bundle import Bundle

    now = datetime.now(UTC)
    root = f"headrace-bundle-{now:%Y%m%dT%H%M%SZ}"
    file = to or Path(f"{root}.tar.gz")
    if str(file) == "-" and is_terminal(sys.stdout):
        raise CommandFailed("a bundle is no text for a terminal", ExitCode.USAGE, "Send it on: > bundle.tar.gz")
    if file.exists():
        raise CommandFailed(f"{file} is there already", ExitCode.USAGE, "Give another with --to.")
    gathered = Bundle()
    gathered.data("about.json", lambda: bundle_parts.about(session, now.isoformat()))
    hint("asking the cluster ...")
    bundle_parts.add_cluster(gathered, session)
    local = bundle_parts.add_local(gathered, data_dir)
    if str(file) == "-":
        gathered.write_to(sys.stdout.buffer, root, int(now.timestamp()))
        sys.stdout.buffer.flush()
        return
    size = gathered.write(file, root, int(now.timestamp()))
    if session.output is Output.TABLE:
        session.say(f"{file}: {format_count(len(gathered.names), 'part')}, {bytes_for_people(size)}")
        for name, why in gathered.missing.items():
            session.say(f"note: {name} is missing: {why}")
        session.say("secrets are cut out; names of topics, groups and hosts are in it: look before you send it on")
    else:
        session.show(
            {
                "file": str(file),
                "size_bytes": size,
                "parts": gathered.names,
                "missing": gathered.missing,
                "local_cluster": local,
            }
        )


def _offline(data_dir: Path, topic: str | None, partition: int | None, batches: int) -> list[dict[str, Any]]:
    """Through the broker's own read-only tool; this package keeps no second idea of what is on disk."""
    import json
    import subprocess
    from importlib.util import find_spec

    if topic is not None:
        raise CommandFailed(
            "a data directory knows topics by their ids only",
            ExitCode.USAGE,
            "Leave the topic out; `headrace topic describe` shows a topic's id.",
        )
    if not data_dir.is_dir():
        raise CommandFailed(f"{data_dir} is no directory", ExitCode.NOT_FOUND, "Give the data directory of one broker.")
    if find_spec("headrace_broker") is None:
        raise CommandFailed(
            "reading a data directory needs the broker's package, which is not installed here",
            hint="Run it where the broker is installed, or leave --data-dir out to ask running brokers.",
        )
    command = [sys.executable, "-m", "headrace_broker.dump", str(data_dir), str(batches)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=OFFLINE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"{data_dir} could not be read within {OFFLINE_SECONDS} s; its write-ahead log may be garbled",
            ExitCode.TIMED_OUT,
            "Start the broker on it: it cuts off what is garbled, keeps it beside, and reports it.",
        ) from None
    if done.returncode:
        raise CommandFailed(done.stderr.strip()[-2000:] or "the dump failed", hint="Check the directory and try again.")
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return [row for row in rows if partition is None or row.get("partition") == partition]
