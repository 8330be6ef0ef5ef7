"""``headrace broker``: the brokers one by one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli import completing
from headrace_cli.commanding import command, pairs
from headrace_cli.commands.cluster import show_configs, show_plan
from headrace_cli.commands.partition import DryRun, Throttle, Timeout, Wait, confirm
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, bytes_for_people, format_count, moment_for_people
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace import AdminClient

HELP = "Brokers: list, describe, drain, decommission"
DRAIN_SECONDS = 5.0


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace broker``."""
    command(app, "list")(list_)
    command(app)(describe)
    command(app)(configs)
    command(app)(drain)
    command(app)(undrain)
    command(app)(decommission)
    command(app)(unregister)


def list_(session: Session) -> None:
    """List brokers with their addresses and what they hold."""
    from headrace_cli import admin_view
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        rows = admin_view.list_brokers(admin, view.cluster(admin)["brokers"])
        carried = {b["id"]: b for b in view.status(admin)["brokers"]}
    for row in rows:
        mine = carried.get(row["id"], {})
        row |= {name: mine.get(name) for name in ("leaders", "replicas", "in_sync")}
    if session.output is Output.TABLE:
        rows = [_for_people(row) for row in rows]
    carries = ("leaders", "replicas", "in_sync", "logs", "size", "disk_free")
    columns = ("id", "state", "drained", "grpc", "rack", *carries, "version", "error")
    session.show_rows("brokers", rows, *columns, empty="no broker is registered")


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A broker with its state in one word, and sizes as people read them."""
    from headrace_cli.replication_view import state_of

    sizes = {name: row.get(f"{name}_bytes") for name in ("size", "disk_free", "disk_total")}
    return row | {
        "state": state_of(row),
        "logs": row["log_count"],
        "error": row["error"] and row["error"]["detail"],
        **{name: None if count is None else bytes_for_people(count) for name, count in sizes.items()},
    }


BrokerId = Annotated[int, typer.Argument(min=0, max=2**31 - 1, help="Its id", autocompletion=completing.brokers)]


def describe(session: Session, broker: BrokerId) -> None:
    """Show one broker: addresses, its logs, what recovery found, and its settings."""
    from headrace_cli import admin_view
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        registered = {b["id"]: b for b in view.cluster(admin)["brokers"]}
        if broker not in registered:
            raise CommandFailed(
                f"broker {broker} is not registered", ExitCode.NOT_FOUND, "`headrace broker list` shows those that are."
            )
        data = admin_view.describe_broker(admin, registered[broker])
    session.show(_format_broker(data) if session.output is Output.TABLE else data)


_DESCRIBED = ("id", "state", "grpc", "rack", "drained", "version", "logs", "error", "size", "disk_free", "disk_total")


def _format_broker(data: dict[str, Any]) -> dict[str, Any]:
    row = _for_people(data)
    scrub, configs = data.get("scrub"), data["configs"]
    columns = ("name", "value", "source", "documentation")
    return {name: row[name] for name in _DESCRIBED} | {
        "recovery": data.get("recovery_report"),
        "scrub": None if scrub is None else _scrub_for_people(scrub),
        "configs": [{name: c[name] for name in columns} for c in configs if c["source"] != "default"],
    }


def _scrub_for_people(scrub: dict[str, Any]) -> str:
    """How far the reading of all that is stored is, in one line."""
    read = f"{scrub['logs_done']} of {scrub['logs']} logs, {bytes_for_people(scrub['bytes_read'])}"
    ended = moment_for_people(scrub["last_ended_ms"])
    parts = [f"running: {read}"] if scrub["running"] else []
    parts.append("no pass has ended since the start" if ended is None else f"last pass ended {ended}")
    if scrub["lost_logs"]:
        parts.append(f"{scrub['lost_logs']} logs with a batch that cannot be read")
    return "; ".join(parts)


def configs(
    session: Session,
    broker: BrokerId,
    setting: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE...]", help="Settings to change; KEY= resets to the cluster's"),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Include settings with default values")] = False,
    dry_run: DryRun = False,
) -> None:
    """Show or change settings of one broker. They go before those of `cluster configs`."""
    from headrace_cli import admin_view

    changes = {key: value or None for key, value in pairs(setting, "KEY=VALUE").items()}
    with session.admin() as admin:
        rows = admin_view.broker_configs(admin, broker, changes, dry_run=dry_run)
    shown = [row for row in rows if all_ or row["source"] != "default" or row["name"] in changes]
    show_configs(session, shown)


def drain(session: Session, broker: BrokerId) -> None:
    """Move leaders away from a broker and keep them away; it goes on copying. Ended by ``undrain``."""
    _drain(session, broker, drained=True)


def undrain(session: Session, broker: BrokerId) -> None:
    """Let leaders come back to a broker."""
    _drain(session, broker, drained=False)


def _drain(session: Session, broker: int, *, drained: bool) -> None:
    from headrace_cli import moving

    with session.admin() as admin:
        leading = admin.drain_broker(broker, drained=drained)
        end = time.monotonic() + DRAIN_SECONDS
        while drained and leading and time.monotonic() < end:  # elections under way end soon
            time.sleep(moving.POLL_SECONDS)
            leading = admin.drain_broker(broker, drained=drained)
    if session.output is not Output.TABLE:
        session.show({"broker": broker, "drained": drained, "still_leading": leading})
    elif not drained:
        session.say(f"broker {broker} may lead again; `headrace partition elect` brings its leaders back at once")
    elif leading:
        session.say(
            f"broker {broker} is drained and leads {format_count(leading, 'partition')} that nobody else can lead now: "
            "no other replica is in sync, or there is none; `headrace topic describe` shows them, and "
            "`headrace partition move` gives them others"
        )
    else:
        session.say(f"broker {broker} is drained; it leads nothing and may be stopped")


def decommission(
    session: Session,
    broker: BrokerId,
    *,
    dry_run: DryRun = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout: Timeout = 3_600,
) -> None:
    """Drain a broker and move all it holds to others. Given again, it goes on with what is left."""
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        left = view.decommission(admin, broker, execute=not dry_run, throttle=None if dry_run else throttle)
        refused = [move for move in left["moves"] if move["error"] is not None]
        if not refused and wait and not dry_run:
            left = _until_empty(session, admin, broker, timeout, throttled=throttle is not None)
    if session.output is not Output.TABLE:
        session.show(left)
    else:
        show_plan(session, left)
        session.say(left["next_step"])
    if refused:
        raise CommandFailed(
            f"{format_count(len(refused), 'partition')} could not be moved: {refused[0]['error']['detail']}",
            hint="Mend that, then give the command again.",
        )


def _until_empty(
    session: Session, admin: AdminClient, broker: int, timeout: float, *, throttled: bool
) -> dict[str, object]:
    from headrace_cli import moving
    from headrace_cli import replication_view as view

    last: dict[str, object] = {}
    tell = moving.Teller()

    def left() -> int:
        last.update(view.decommission(admin, broker, execute=False, throttle=None))
        number = last["replicas_left"]
        assert isinstance(number, int)
        if number:
            under_way = view.reassignments(admin)["reassignments"]
            tell(session, [p for p in under_way if broker in p["partition"]["removing"]])
        return number

    moving.wait_for(left, timeout)
    if throttled:
        moving.clear_throttle(session, admin)
    return last


def unregister(
    session: Session, broker: BrokerId, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False
) -> None:
    """Forget a broker that is stopped and holds nothing, after its decommission."""
    confirm(f"forget broker {broker}?", yes)
    with session.admin() as admin:
        admin.unregister_node("broker", broker)
    session.report({"broker": broker, "forgotten": True}, f"broker {broker} is forgotten")
