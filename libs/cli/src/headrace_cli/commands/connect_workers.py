"""``headrace connect apply``, ``list``, ``status``, … : connectors that workers run, by their REST interface."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from headrace_cli.commanding import plain_command, read_text
from headrace_cli.commands.connect_apply import apply
from headrace_cli.commands.connect_ours import events, snapshot
from headrace_cli.commands.connect_verify import verifications, verify
from headrace_cli.commands.partition import DryRun, confirm
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session
from headrace_cli.workers import Name, Url, Wait, Workers, Yes

_TRACE_CHARS_MAX: Final = 200
_RUNNING: Final = "RUNNING"
STOP_SECONDS: Final = 30.0
"""So long tasks may take to end."""

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Of connectors")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace connect``."""
    plain_command(app)(apply)
    plain_command(app, "list")(list_)
    plain_command(app)(status)
    plain_command(app)(pause)
    plain_command(app)(resume)
    plain_command(app)(stop)
    plain_command(app)(restart)
    plain_command(app)(offsets)
    plain_command(app)(delete)
    plain_command(app)(verify)
    plain_command(app)(verifications)
    plain_command(app)(snapshot)
    plain_command(app)(events)


def list_(session: Session, *, url: Url = None) -> None:
    """List the connectors, how they are and where they run."""
    found = Workers(url, session.cluster).get("connectors", expand=["info", "status"])
    rows = [_row(name, one) for name, one in sorted(found.items())]
    session.show_rows(
        "connectors", rows, "name", "type", "class", "state", "tasks", "running", "worker", empty="there are none"
    )


def status(session: Session, name: Name, *, url: Url = None) -> None:
    """Show how a connector and each of its tasks are, and why one has failed or waits."""
    found = Workers(url, session.cluster).get("connectors", name, "status")
    if session.output is not Output.TABLE:
        session.show(found)
        return
    parts = [{"part": "connector", **found["connector"]}]
    parts += [{"part": f"task {task['id']}", **task} for task in found["tasks"]]
    rows = [
        {"part": one["part"], "state": one["state"], "worker": one["worker_id"], "why": _first(one.get("trace"))}
        for one in parts
    ]
    session.show(rows, "part", "state", "worker", "why")


def pause(session: Session, names: Names, *, url: Url = None) -> None:
    """Have connectors read no more; their tasks stay."""
    _each(session, url, names, "pause", "paused")


def resume(session: Session, names: Names, *, url: Url = None) -> None:
    """Have connectors run that were paused or stopped."""
    _each(session, url, names, "resume", "resumed")


def stop(session: Session, names: Names, *, url: Url = None) -> None:
    """End the tasks of connectors; configuration and offsets stay."""
    _each(session, url, names, "stop", "stopped")


def restart(
    session: Session,
    name: Name,
    *,
    task: Annotated[int | None, typer.Option("--task", min=0, metavar="N", help="This task alone")] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="Its tasks too")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Only what has failed")] = False,
    url: Url = None,
) -> None:
    """Have a connector, or a task of it, begin anew."""
    workers = Workers(url, session.cluster)
    if task is not None:
        if tasks or only_failed:
            raise typer.BadParameter("--task names one; leave out --tasks and --only-failed")
        workers.post("connectors", name, "tasks", str(task), "restart")
        session.report({"name": name, "task": task, "restarted": True}, f"task {task} of {name} begins anew")
        return
    asked = {"includeTasks": str(tasks).lower(), "onlyFailed": str(only_failed).lower()}
    workers.post("connectors", name, "restart", **(asked if tasks or only_failed else {}))
    session.report({"name": name, **asked}, f"{name} begins anew")


def offsets(
    session: Session,
    name: Name,
    *,
    set_: Annotated[
        str | None, typer.Option("--set", metavar="FILE", help="Set those in a file, as -o json shows them; -: stdin")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget all: it begins anew")] = False,
    yes: Yes = False,
    url: Url = None,
) -> None:
    """
    Show where a connector goes on. It must be stopped before they are set or forgotten.

    That waits up to 30 seconds for its tasks to end.
    """
    workers, wait = Workers(url, session.cluster), Wait(time.monotonic() + STOP_SECONDS, also_nobody=False)
    if set_ is not None and reset:
        raise typer.BadParameter("give --set or --reset")
    if set_ is not None:
        body = _read_offsets(set_)
        _report_message(session, wait.ask(lambda: workers.patch("connectors", name, "offsets", body=body)))
        return
    if reset:
        confirm(f"forget where {name} goes on?", yes)
        _report_message(session, wait.ask(lambda: workers.delete("connectors", name, "offsets")))
        return
    found = workers.get("connectors", name, "offsets")
    if session.output is not Output.TABLE:
        session.show(found)
        return
    rows = [{part: json.dumps(pair[part]) for part in ("partition", "offset")} for pair in found["offsets"]]
    session.show(rows, "partition", "offset", empty="nothing is committed")


def delete(session: Session, names: Names, *, yes: Yes = False, dry_run: DryRun = False, url: Url = None) -> None:
    """Delete connectors and their tasks. Offsets stay: one of the same name goes on there."""
    workers = Workers(url, session.cluster)
    names = list(dict.fromkeys(names))
    if dry_run:
        for name in names:
            workers.get("connectors", name)
        session.report({"connectors": names, "deleted": False}, f"a plan, nothing was changed: {', '.join(names)}")
        return
    confirm(f"delete {', '.join(names)}?", yes)
    _each_of(session, names, lambda name: workers.delete("connectors", name), "deleted")


def _each(session: Session, url: str | None, names: Iterable[str], what: str, done: str) -> None:
    workers = Workers(url, session.cluster)
    _each_of(session, list(dict.fromkeys(names)), lambda name: workers.put("connectors", name, what), done)


def _each_of(session: Session, names: list[str], do: Any, done: str) -> None:
    """
    All of them, also behind one that fails.

    Raises:
        CommandFailed: the first failure, when all were tried.
    """
    rows: list[dict[str, Any]] = []
    failed: list[CommandFailed] = []
    for name in names:
        try:
            do(name)
        except CommandFailed as failure:
            failed.append(failure)
            rows.append({"name": name, "error": str(failure)})
            continue
        rows.append({"name": name, "error": None})
        if session.output is Output.TABLE:
            session.say(f"{name}: {done}")
    if session.output is not Output.TABLE:
        session.show({"connectors": rows})
    if failed:
        raise failed[0]


def _report_message(session: Session, answer: Mapping[str, Any]) -> None:
    session.report(answer, str(answer["message"]))


def _row(name: str, one: Mapping[str, Any]) -> dict[str, Any]:
    info, status = one.get("info", {}), one.get("status", {})
    tasks = status.get("tasks", [])
    return {
        "name": name,
        "type": info.get("type"),
        "class": info.get("config", {}).get("connector.class"),
        "state": status.get("connector", {}).get("state"),
        "tasks": len(info.get("tasks", [])),
        "running": sum(task["state"] == _RUNNING for task in tasks),
        "worker": status.get("connector", {}).get("worker_id"),
    }


def _first(trace: str | None) -> str | None:
    """The line of a trace that says what happened: of Python's the last, of Java's the first."""
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    if not lines:
        return None
    return lines[-1 if lines[0].startswith("Traceback") else 0][:_TRACE_CHARS_MAX]


def _read_offsets(file: str) -> Any:
    takes = 'JSON: {"offsets": [{"partition": {…}, "offset": {…}}]}'
    try:
        return json.loads(read_text(file, takes))
    except ValueError as error:
        raise CommandFailed(f"{file}: {error}", ExitCode.USAGE, f"It takes {takes}.") from None
