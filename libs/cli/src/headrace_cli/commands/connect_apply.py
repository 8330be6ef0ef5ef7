"""``headrace connect apply``: connectors of workers as files say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer

from headrace_cli.commands.partition import confirm
from headrace_cli.connector_file import Files, read_connector
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session
from headrace_cli.workers import Url, Wait, Workers, Yes
from headrace_common.runtime.connector_text import difference

LEADER_SECONDS: Final = 30.0
"""So long workers may take until one of them leads."""
_Config = Mapping[str, str]


def apply(
    session: Session,
    files: Files = None,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would change and what is wrong; change nothing")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete all connectors that no file has")] = False,
    yes: Yes = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, help="How long to wait for a worker, in seconds; else it must be there, and lead within 30"
        ),
    ] = None,
    url: Url = None,
) -> None:
    """
    Create connectors, or give them the configuration in files. Keys that a file does not have are left out.

    With --plan it ends with 1 where a configuration is wrong. With --prune and no file, all connectors are deleted.
    """
    if not files and not prune:
        raise typer.BadParameter("name a FILE")
    configs = _read_all(files or [])
    workers, wait = (
        Workers(url, session.cluster),
        Wait(time.monotonic() + (LEADER_SECONDS if timeout is None else timeout), timeout is not None),
    )
    excess = sorted(set(wait.ask(lambda: workers.get("connectors"))) - configs.keys()) if prune else []
    if plan:
        _show_plans(session, [wait.ask(partial(_plan, workers, config)) for config in configs.values()], excess)
        return
    if excess:
        confirm(f"delete {', '.join(excess)}?", yes)
    rows, failed = _change_all(session, configs, lambda config: wait.ask(lambda: _change(workers, config)))
    for name in [] if failed else excess:
        wait.ask(partial(workers.delete, "connectors", name))
        rows.append({"name": name, "action": "delete"})
        if session.output is Output.TABLE:
            session.say(f"{name}: deleted")
    if session.output is not Output.TABLE:
        session.show(rows[0] if len(configs) == 1 and not prune and rows else {"connectors": rows})
    if failed:
        raise failed[0]


def _read_all(files: Sequence[str]) -> dict[str, _Config]:
    """By name. Raises: CommandFailed, where one has no name, or two have the same."""
    found: dict[str, _Config] = {}
    for file in files:
        config = read_connector(file)
        name = config.get("name")
        if not name:
            raise CommandFailed(f"{file} has no name", ExitCode.USAGE, "A connector needs one: name: NAME.")
        if name in found:
            raise CommandFailed(f"{file}: there is another connector {name!r} in these files", ExitCode.USAGE)
        found[name] = config
    return found


def _change_all(
    session: Session, configs: Mapping[str, _Config], change: Callable[[_Config], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[CommandFailed]]:
    """All of them, also behind one that fails."""
    rows: list[dict[str, Any]] = []
    failed: list[CommandFailed] = []
    for name, config in configs.items():
        try:
            row = change(config)
        except CommandFailed as failure:
            failed.append(failure)
            if len(configs) > 1:
                rows.append({"name": name, "action": "failed", "error": str(failure)})
                session.say(f"{name}: {failure}")
            continue
        rows.append(row)
        if session.output is Output.TABLE:
            changed = f"changed, {format_count(len(row['changes']), 'key')}"
            session.say(f"{name}: {({'create': 'created', 'change': changed, 'none': 'as it was'})[row['action']]}")
    return rows, failed


def _change(workers: Workers, config: _Config) -> dict[str, Any]:
    made, changes = difference(workers.find("connectors", config["name"], "config"), config)
    done = workers.put("connectors", config["name"], "config", body=config)
    return {"name": config["name"], "action": made, "changes": changes, "config": done["config"]}


def _plan(workers: Workers, config: _Config) -> dict[str, Any]:
    planned: dict[str, Any] = workers.post("v1", "plan", body={"name": config["name"], "config": config})
    return planned


def _show_plans(session: Session, plans: Sequence[Mapping[str, Any]], excess: Sequence[str]) -> None:
    if session.output is not Output.TABLE:
        gone = [{"name": name, "action": "delete"} for name in excess]
        session.show(dict(plans[0]) if len(plans) == 1 and not gone else {"connectors": [*plans, *gone]})
    else:
        for one in plans:
            session.show(one["changes"], "key", "before", "after", empty="nothing would change")
            if one["problems"]:
                session.show(one["problems"], "key", "problem")
            session.say(f"a plan, nothing was changed: {one['name']}, action: {one['action']}")
        for name in excess:
            session.say(f"a plan, nothing was changed: {name}, action: delete")
    if any(one["problems"] for one in plans):
        raise typer.Exit(ExitCode.FAILED)
