"""``headrace cluster``: the cluster as a whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace_cli.commanding import command, pairs
from headrace_cli.exits import ExitCode
from headrace_cli.output import Output, counted
from headrace_cli.session import Session

HELP = "The cluster as a whole: status, health, nodes, settings"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace cluster``."""
    command(app)(status)
    command(app)(health)
    command(app)(describe)
    command(app)(configs)


def status(session: Session) -> None:
    """How the cluster is, in full: nodes, partitions, and what is wrong."""
    cluster = _describe(session)
    healthy, verdict = judge(cluster)
    if session.output is Output.TABLE:
        session.show({"verdict": verdict, **cluster})
    else:
        session.show({"healthy": healthy, "verdict": verdict, **cluster})


def health(session: Session) -> None:
    """One line: healthy, or what is not. Ends with 1 when it is not."""
    cluster = _describe(session)
    healthy, verdict = judge(cluster)
    if session.output is Output.TABLE:
        typer.echo(verdict)
    else:
        session.show({"healthy": healthy, "verdict": verdict})
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


def describe(session: Session) -> None:
    """Nodes with their addresses, and counts."""
    session.show(_describe(session))


def configs(
    session: Session,
    setting: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE...]", help="Change these; KEY= gives the default back")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that have their default")] = False,
) -> None:
    """Show or change settings of all brokers."""
    from headrace_cli import admin_view

    changes = {key: value or None for key, value in pairs(setting, "KEY=VALUE").items()}
    with session.admin() as admin:
        rows = admin_view.broker_configs(admin, None, changes)
    shown = [row for row in rows if all_ or row["source"] != "default" or row["name"] in changes]
    session.show(
        shown, "name", "value", "source", "documentation", empty="every setting has its default; --all shows them"
    )


def judge(cluster: dict[str, Any]) -> tuple[bool, str]:
    """Whether a described cluster is well, and a sentence. Pure."""
    wrong: list[str] = []
    if cluster["active_controller"] is None:
        wrong.append("no controller is active: topics cannot be changed")
    if not cluster["metadata_store_reachable"]:
        wrong.append("etcd cannot be reached: topics cannot be changed")
    wrong += [
        f"broker {broker['id']} is {broker['state']}" for broker in cluster["brokers"] if broker["state"] != "online"
    ]
    if offline := cluster["offline_partitions"]:
        wrong.append(f"{counted(offline, 'partition')} without a leader")
    if under := cluster["under_replicated_partitions"]:
        wrong.append(f"{counted(under, 'partition')} with too few replicas in sync")
    if wrong:
        return False, f"not healthy: {'; '.join(wrong)}"
    there = ((len(cluster["brokers"]), "broker"), (cluster["topics"], "topic"), (cluster["partitions"], "partition"))
    return True, f"healthy: {', '.join(counted(number, what) for number, what in there)}"


def health_of(bootstrap: str, timeout_ms: int) -> tuple[bool, str]:
    """The same for ``headrace status``. Raises: HeadraceError when nobody answers in time."""
    from headrace import AdminClient
    from headrace_cli import admin_view

    with AdminClient(bootstrap, default_api_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms) as admin:
        return judge(admin_view.describe_cluster(admin))


def _describe(session: Session) -> dict[str, Any]:
    from headrace_cli import admin_view

    with session.admin() as admin:
        return admin_view.describe_cluster(admin)
