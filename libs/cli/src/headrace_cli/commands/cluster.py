"""``headrace cluster``: the cluster as a whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace_cli.commanding import command, pairs
from headrace_cli.commands.partition import DryRun, Throttle, Timeout, Wait, agreed, wait_until_moved
from headrace_cli.exits import CommandFailed, ExitCode, exit_code_of_state
from headrace_cli.output import Output, bytes_for_people, format_count
from headrace_cli.session import Session
from headrace_cli.terminal import visible

HELP = "The cluster as a whole: status, health, nodes, settings"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace cluster``."""
    command(app)(status)
    command(app)(health)
    command(app)(describe)
    command(app)(configs)
    command(app)(rebalance)
    command(app)(can_remove)
    command(app, "restore-status")(restore_status)
    command(app)(features)
    command(app)(forget)


def status(session: Session) -> None:
    """How the cluster is, in full: nodes, partitions, what is wrong. Ends with 6 (degraded) or 7 (unavailable)."""
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        found = view.status(admin)
    session.show(view.status_for_people(found) if session.output is Output.TABLE else found)
    _end(found["state"])


def health(session: Session) -> None:
    """One line: how it is, and what to do. Ends with 6 (degraded) or 7 (unavailable)."""
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        found = view.status(admin)
    if session.output is Output.TABLE:
        typer.echo(visible(found["verdict"]))
    else:
        session.show({name: found[name] for name in ("state", "verdict")})
    _end(found["state"])


def _end(state: str) -> None:
    code = exit_code_of_state(state)
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def rebalance(
    session: Session,
    *,
    plan: Annotated[bool, typer.Option("--plan", "--dry-run", help="Show what would move; the default")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Start it")] = False,
    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only these")] = None,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout: Timeout = 3_600,
) -> None:
    """Level replicas and leaders over all brokers and racks, with few moves. At a terminal it shows them and asks."""
    from headrace_cli import replication_view as view

    if plan and execute:
        raise typer.BadParameter("give --plan or --execute, not both")
    with session.admin() as admin:
        found = view.rebalance(admin, topic or [], execute=execute, throttle=throttle if execute else None)
        _show_moves(session, found)
        moves = format_count(len(found["moves"]), "partition")
        if found["moves"] and not (plan or execute) and agreed(f"move {moves}?"):
            execute = True
            found = view.rebalance(admin, topic or [], execute=True, throttle=throttle)
            _show_moves(session, found)
        moved = [(move["topic"], move["partition"]) for move in found["moves"] if move["error"] is None]
        refused = [move for move in found["moves"] if move["error"] is not None]
        if execute and wait and moved:
            wait_until_moved(session, admin, moved, timeout, throttled=throttle is not None)
            view.elect(admin, "preferred", moved, view.Topics(admin))
    if refused:
        raise CommandFailed(
            f"{format_count(len(refused), 'partition')} could not be moved: {refused[0]['error']['detail']}",
            hint="Mend that, then give the command again.",
        )
    if not found["moves"]:
        session.say("nothing is to be moved: replicas and leaders are level")
    elif not execute:
        session.say("`headrace cluster rebalance --execute` starts it")
    elif not wait:
        session.say("`headrace partition reassignments` shows how far it is; then `headrace partition elect`")


def _show_moves(session: Session, found: dict[str, Any]) -> None:
    if session.output is not Output.TABLE:
        session.show(found)
    else:
        show_plan(session, found)


def show_plan(session: Session, found: dict[str, Any]) -> None:
    """A plan as tables."""
    if not found["moves"]:
        return
    rows = [
        {
            "partition": f"{move['topic']}-{move['partition']}",
            "from": move["replicas_before"],
            "to": move["replicas"],
            "size": None if move["size_bytes"] is None else bytes_for_people(move["size_bytes"]),
        }
        | ({"error": move["error"]["detail"]} if move["error"] else {})
        for move in found["moves"]
    ]
    session.show({"to_copy": bytes_for_people(found["bytes_to_copy"]), "moves": rows, "brokers": found["brokers"]})


def can_remove(
    session: Session,
    *,
    brokers: Annotated[str, typer.Option("--brokers", metavar="ID[,ID...]", help="Brokers to remove")],
) -> None:
    """May these brokers be taken away for good? Ends with 1 while one of them holds replicas."""
    from headrace_cli.removal import ONLINE, PARTITIONS_SHOWN, check_removable, holdings

    wanted = _ids(brokers)
    with session.admin() as admin:
        found = holdings(admin, wanted)
    most = PARTITIONS_SHOWN if session.output is Output.TABLE else None
    session.show_rows("brokers", [broker.as_row(most) for broker in found], "id", "state", "replicas", "partitions")
    check_removable(found)
    for broker in found:
        if broker.state == ONLINE and not broker.drained:
            session.say(
                f"note: new topics may still be placed on broker {broker.id}; `headrace broker drain` ends that"
            )
    session.say("they hold nothing and may go; `headrace broker unregister ID` forgets them afterwards")


def _ids(text: str) -> list[int]:
    try:
        ids = [int(word) for word in text.split(",")]
    except ValueError:
        ids = []
    if not ids or min(ids) < 0 or max(ids) > 2**31 - 1 or len(set(ids)) < len(ids):
        raise typer.BadParameter(f"{text!r}: write ids of brokers with commas between, as in 3,4")
    return ids


def restore_status(session: Session) -> None:
    """How far the cluster is after its metadata was restored from a backup. Ends with 7 while nobody leads yet."""
    from headrace_cli import restore_view

    with session.admin() as admin:
        found = restore_view.restore(admin)
    if found is None:
        session.say("the metadata was never restored from a backup")
        if session.output is not Output.TABLE:
            session.show({"restore": None})
        return
    session.show({"restore": found} if session.output is not Output.TABLE else restore_view.for_people(found))
    if not found["finished"]:
        session.say(restore_view.waits_for(found))
        raise typer.Exit(ExitCode.UNAVAILABLE)
    session.say(
        "it is finished; `headrace topic strays` shows logs that belong to no topic, and "
        "`headrace access since-backup` what was revoked after the backup and is there again"
    )


def features(session: Session) -> None:
    """The cluster's feature level, what each level brings, what every node knows, and what the next waits for."""
    from headrace_cli import features_view

    with session.admin() as admin:
        found = features_view.features(admin)
    if session.output is not Output.TABLE:
        session.show(found)
        return
    session.show({name: found[name] for name in ("level", "features", "nodes")})
    session.say(found["waits_for"] or "every node knows all that there is; the level rises by itself and never falls")


def forget(
    session: Session, node: Annotated[str, typer.Argument(metavar="NODE", help="Role and id, such as coordinator-2")]
) -> None:
    """Forget a controller, coordinator or admin that is away for good; one that comes back registers again."""
    from headrace_cli import features_view

    meant = features_view.node_of(node)
    if meant is None:
        roles = ", ".join(features_view.ROLES)
        raise typer.BadParameter(
            f"{node!r}: write a role ({roles}) and an id, as in coordinator-2; for a broker it is `headrace broker "
            "unregister`"
        )
    with session.admin() as admin:
        admin.unregister_node(*meant)
    session.report({"node": node, "forgotten": True}, f"{node} is forgotten")


def describe(session: Session) -> None:
    """Nodes with their addresses, and counts."""
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        found = view.cluster(admin)
    session.show(view.cluster_for_people(found) if session.output is Output.TABLE else found)


def configs(
    session: Session,
    setting: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE...]", help="Settings to change; KEY= resets to the default"),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Include settings with default values")] = False,
    dry_run: DryRun = False,
    at_start: Annotated[
        bool,
        typer.Option("--at-start", help="Those that `up --set` takes beside them, of the services on this machine"),
    ] = False,
) -> None:
    """Show or change settings of all brokers."""
    from headrace_cli import admin_view

    if at_start:
        from headrace_cli.local.installed import require_local
        from headrace_cli.local.start_settings import start_settings

        if setting:
            raise typer.BadParameter("--at-start shows what only a start can change; `headrace up --set` gives it")
        require_local("cluster configs --at-start")
        session.show_rows("configs", start_settings(), "name", "default", "service", "documentation")
        return

    changes = {key: value or None for key, value in pairs(setting, "KEY=VALUE").items()}
    with session.admin() as admin:
        rows = admin_view.broker_configs(admin, None, changes, dry_run=dry_run)
    shown = [row for row in rows if all_ or row["source"] != "default" or row["name"] in changes]
    show_configs(session, shown)


def show_configs(session: Session, rows: list[dict[str, Any]]) -> None:
    """Settings, of all brokers or of one."""
    columns = ("name", "value", "source", "documentation")
    session.show_rows("configs", rows, *columns, empty="every setting has its default; --all shows them")
