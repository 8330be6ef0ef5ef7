"""``headrace connect apply``, ``list``, ``status``, … : connectors that workers run, by their REST interface."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from headrace_cli.commanding import plain_command, read_text
from headrace_cli.commands.partition import DryRun, confirm
from headrace_cli.connector_file import File, read_connector
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session
from headrace_cli.workers import DEFAULT_URL, Workers

_TRACE_CHARS_MAX: Final = 200
_RUNNING: Final = "RUNNING"

Url = Annotated[
    str, typer.Option("--url", metavar="URL", envvar="HEADRACE_CONNECT_URL", help="Of any worker", show_default=True)
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the connector")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Of connectors")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


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


def apply(
    session: Session,
    file: File,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would change and what is wrong; change nothing")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """
    Create a connector, or give it the configuration in a file. Keys that the file does not have are left out.

    With --plan it ends with 1 where the configuration is wrong.
    """
    config = read_connector(file)
    name = config.get("name")
    if not name:
        raise CommandFailed(f"{file} has no name", ExitCode.USAGE, "A connector needs one: name: NAME.")
    workers = Workers(url)
    before: Mapping[str, str] | None = workers.find("connectors", name, "config")
    changes = _changes(before or {}, config)
    made = "create" if before is None else "change" if changes else "none"
    if plan:
        _show_plan(session, name, made, changes, _problems(workers, config))
        return
    done = workers.put("connectors", name, "config", body=config)
    said = {"create": "created", "change": f"changed, {format_count(len(changes), 'key')}", "none": "as it was"}[made]
    session.report({"name": name, "action": made, "changes": changes, "config": done["config"]}, f"{name}: {said}")


def list_(session: Session, *, url: Url = DEFAULT_URL) -> None:
    """List the connectors, how they are and where they run."""
    found = Workers(url).get("connectors", expand=["info", "status"])
    rows = [_row(name, one) for name, one in sorted(found.items())]
    session.show_rows(
        "connectors", rows, "name", "type", "class", "state", "tasks", "running", "worker", empty="there are none"
    )


def status(session: Session, name: Name, *, url: Url = DEFAULT_URL) -> None:
    """Show how a connector and each of its tasks are, and why one has failed or waits."""
    found = Workers(url).get("connectors", name, "status")
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


def pause(session: Session, names: Names, *, url: Url = DEFAULT_URL) -> None:
    """Have connectors read no more; their tasks stay."""
    _each(session, url, names, "pause", "paused")


def resume(session: Session, names: Names, *, url: Url = DEFAULT_URL) -> None:
    """Have connectors run that were paused or stopped."""
    _each(session, url, names, "resume", "resumed")


def stop(session: Session, names: Names, *, url: Url = DEFAULT_URL) -> None:
    """End the tasks of connectors; configuration and offsets stay."""
    _each(session, url, names, "stop", "stopped")


def restart(
    session: Session,
    name: Name,
    *,
    task: Annotated[int | None, typer.Option("--task", min=0, metavar="N", help="This task alone")] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="Its tasks too")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Only what has failed")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Have a connector, or a task of it, begin anew."""
    workers = Workers(url)
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
    url: Url = DEFAULT_URL,
) -> None:
    """Show where a connector goes on. It must be stopped before they are set or forgotten."""
    workers = Workers(url)
    if set_ is not None and reset:
        raise typer.BadParameter("give --set or --reset")
    if set_ is not None:
        _report_message(session, workers.patch("connectors", name, "offsets", body=_read_offsets(set_)))
        return
    if reset:
        confirm(f"forget where {name} goes on?", yes)
        _report_message(session, workers.delete("connectors", name, "offsets"))
        return
    found = workers.get("connectors", name, "offsets")
    if session.output is not Output.TABLE:
        session.show(found)
        return
    rows = [{part: json.dumps(pair[part]) for part in ("partition", "offset")} for pair in found["offsets"]]
    session.show(rows, "partition", "offset", empty="nothing is committed")


def delete(
    session: Session, names: Names, *, yes: Yes = False, dry_run: DryRun = False, url: Url = DEFAULT_URL
) -> None:
    """Delete connectors and their tasks. Offsets stay: one of the same name goes on there."""
    workers = Workers(url)
    names = list(dict.fromkeys(names))
    if dry_run:
        for name in names:
            workers.get("connectors", name)
        session.report({"connectors": names, "deleted": False}, f"a plan, nothing was changed: {', '.join(names)}")
        return
    confirm(f"delete {', '.join(names)}?", yes)
    _each_of(session, names, lambda name: workers.delete("connectors", name), "deleted")


def _each(session: Session, url: str, names: Iterable[str], what: str, done: str) -> None:
    workers = Workers(url)
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


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, Any]]:
    keys = sorted({**before, **after})
    return [
        {"key": key, "before": before.get(key), "after": after.get(key)}
        for key in keys
        if before.get(key) != after.get(key) and (key != "name" or before)
    ]


def _problems(workers: Workers, config: Mapping[str, str]) -> list[dict[str, Any]]:
    plugin = config.get("connector.class", "")
    if not plugin:
        return [{"key": "connector.class", "problem": "connector.class is missing"}]
    found = workers.put("connector-plugins", plugin, "config", "validate", body=dict(config))
    return [
        {"key": one["value"]["name"], "problem": error} for one in found["configs"] for error in one["value"]["errors"]
    ]


def _show_plan(
    session: Session, name: str, made: str, changes: list[dict[str, Any]], problems: list[dict[str, Any]]
) -> None:
    if session.output is Output.TABLE:
        session.show(changes, "key", "before", "after", empty="nothing would change")
        if problems:
            session.show(problems, "key", "problem")
        session.say(f"a plan, nothing was changed: {name}, action: {made}")
    else:
        session.show({"name": name, "action": made, "changes": changes, "problems": problems})
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def _read_offsets(file: str) -> Any:
    takes = 'JSON: {"offsets": [{"partition": {…}, "offset": {…}}]}'
    try:
        return json.loads(read_text(file, takes))
    except ValueError as error:
        raise CommandFailed(f"{file}: {error}", ExitCode.USAGE, f"It takes {takes}.") from None
