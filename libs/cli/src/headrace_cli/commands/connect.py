"""``headrace connect``: data of other systems into topics, and topics into other systems."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headrace_cli.commanding import command
from headrace_cli.commands import connect_plugins, connect_workers
from headrace_cli.commands.connect_plugins import check_installed, kind_of
from headrace_cli.commands.connect_run import run
from headrace_cli.connector_file import File, read_configured, read_connector
from headrace_cli.exits import ExitCode
from headrace_cli.session import Session, check_reachable

HELP = "Connectors: data of other systems into topics, and topics into other systems"
_SHOWN_CHARS_MAX: Final = 200


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace connect``."""
    command(app)(run)
    connect_plugins.register(app)
    command(app, needs_cluster=False)(validate)
    command(app, needs_cluster=False)(preview)
    command(app)(cutover)
    connect_workers.register(app)


def validate(
    session: Session,
    file: File,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Look at the configuration alone")] = False,
) -> None:
    """
    Check every key, and whether the other system can be reached and lets it in. Nothing is written.

    Ends with 1 where something is wrong.
    """
    check_installed()
    from headrace_connect.runtime import main
    from headrace_connect.runtime.configuring import find_config_problems

    given = read_connector(file)
    problems = [{"key": problem.key or None, "problem": problem.message} for problem in find_config_problems(given)]
    if not problems and not offline:
        problems = [{"key": None, "problem": said} for said in main.check(read_configured(file, given))]
    session.show_rows("problems", problems, "key", "problem", empty=f"{given.get('name', file)} is sound")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def preview(
    session: Session,
    file: File,
    *,
    records: Annotated[int, typer.Option(min=1, max=10_000, help="How many records")] = 10,
) -> None:
    """
    Show the first records of a source, as they would be written; of a sink, what would become of those of its topics.

    Nothing is committed: what sql-sink writes for that is rolled back.
    """
    check_installed()
    from headrace_connect.runtime import main
    from headrace_connect.runtime.config import RunConfig

    configured = read_configured(file)
    if kind_of(configured.plugin) == "sink":
        check_reachable(session.cluster)
    found = main.show(configured, records, RunConfig(session.cluster))
    shown = [{name: _text(value) for name, value in row.items()} for row in found]
    session.show_rows("records", shown, *_columns(shown), empty="there are no records")


def cutover(
    session: Session,
    file: File,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Whose members at the source have stopped")],
    *,
    execute: Annotated[bool, typer.Option("--execute", help="Set the positions; else they are only shown")] = False,
    wait_s: Annotated[
        int, typer.Option("--wait", min=0, metavar="SECONDS", help="For the connector to copy what the group has read")
    ] = 60,
) -> None:
    """
    Move a consumer group from the cluster that a connector copies to this one, where each record goes on exactly once.

    What it has committed there is translated into positions of the copies. Stop its members before.
    """
    check_installed()
    from headrace_connect.runtime import main
    from headrace_connect.runtime.config import RunConfig

    configured = read_configured(file)
    check_reachable(session.cluster)
    config = RunConfig(session.cluster)
    moves, done = main.cut_over(configured, group, config, wait_ms=wait_s * 1_000, execute=execute)
    rows = [
        {
            "source": str(move.source),
            "position": move.position,
            "target": str(move.target),
            "offset": move.offset,
        }
        for move in moves
    ]
    session.show_rows("positions", rows, "source", "position", "target", "offset")
    if not done.executed:
        session.say("a plan, nothing was changed: --execute sets these positions")
        return
    topics = ",".join(dict.fromkeys(move.target.topic for move in moves))
    session.say(
        f"group {group} goes on here: start its members with bootstrap_servers={session.bootstrap}, group_id={group}, "
        f"topics {topics}, isolation_level=read_committed"
    )


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
    return value
