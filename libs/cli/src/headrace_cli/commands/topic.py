"""``headrace topic``: create, look at, change and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli import completing
from headrace_cli.commanding import command, pairs
from headrace_cli.commands.partition import DryRun, confirm
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from headrace import AdminClient

HELP = "Create, look at, change and delete topics"
OFFSET_MAX = 2**63 - 1

Name = Annotated[str, typer.Argument(help="The topic", autocompletion=completing.topics)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace topic``."""
    command(app)(create)
    command(app, "list")(list_)
    command(app)(describe)
    command(app, "set")(set_)
    command(app)(add_partitions)
    command(app)(delete)
    command(app)(trim)
    command(app)(strays)
    command(app)(adopt)


def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="The topic")],
    *,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=PARTITIONS_PER_TOPIC_MAX, help="The cluster's default without"),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, max=32, help="The cluster's default without"),
    ] = None,
    config: Annotated[list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="Repeatable")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Be content if it is there")] = False,
    dry_run: DryRun = False,
) -> None:
    """Create a topic."""
    from headrace_cli import admin_view
    from headrace_common.core.errors import TopicAlreadyExists

    configs = pairs(config, "--config KEY=VALUE")
    with session.admin() as admin:
        try:
            made = admin_view.create_topic(admin, name, partitions, replication_factor, configs, dry_run=dry_run)
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            session.report(admin_view.topic_there(admin, name), f"{name} is there already")
            return
    for note in made["notes"]:
        session.say(f"note: {note}")
    if session.output is not Output.TABLE:
        session.show(made)
        return
    verb = "could be created" if dry_run else "created"
    partitions_are = format_count(len(made["partitions"]), "partition")
    replicas = max((len(p["replicas"]) for p in made["partitions"]), default=0)
    session.say(f"{verb}: {name}, {partitions_are}, replication factor {replicas}")


def list_(
    session: Session,
    internal: Annotated[bool, typer.Option("--internal", help="Also those of the system")] = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Also bytes and the oldest record's age: asks brokers")
    ] = False,
) -> None:
    """List topics."""
    from headrace_cli import admin_view, log_view
    from headrace_common.runtime.clock import SystemClock

    with session.admin() as admin:
        rows = admin_view.list_topics(admin, internal, sizes=sizes)
    columns = ["name", "partitions", *(("size", "on_disk", "oldest") if sizes else ()), "configs"]
    if sizes and session.output is Output.TABLE:
        rows = [log_view.sizes_for_people(row, SystemClock().now_ms()) for row in rows]
    if session.output is not Output.TABLE:
        session.show({"topics": rows, "total": len(rows), "next": None})
        return
    session.show(rows, *columns, empty="there are no topics that you may see; `headrace topic create NAME` makes one")


def describe(
    session: Session,
    name: Name,
    segments: Annotated[
        bool, typer.Option("--segments", help="Also the segments of each replica, and how far each is compacted")
    ] = False,
) -> None:
    """Show a topic: partitions with leaders, replicas, offsets, sizes, the oldest record's age, and its settings."""
    from headrace_cli import admin_view, log_view
    from headrace_common.runtime.clock import SystemClock

    with session.admin() as admin:
        topic = admin_view.describe_topic(admin, name, segments=segments)
    if session.output is not Output.TABLE:
        session.show(topic)
        return
    for silent in topic["unanswered"]:
        session.say(f"note: logs are not known of broker {silent['broker']}: {silent['error']['detail']}")
    session.show(log_view.format_topic(topic, with_segments=segments, now_ms=SystemClock().now_ms()))


def set_(
    session: Session,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE...]", help="KEY= gives the default back")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Change settings of a topic; those that are not named stay. Without any: show them all."""
    from headrace_cli import admin_view

    changes = {key: value or None for key, value in pairs(settings, "KEY=VALUE").items()}
    with session.admin() as admin:
        rows = admin_view.set_topic_configs(admin, name, changes, dry_run=dry_run)
    shown = [row for row in rows if row["name"] in changes] if changes else rows
    session.show_rows("configs", shown, "name", "value", "source", "documentation")


def add_partitions(
    session: Session,
    name: Name,
    count: Annotated[int, typer.Argument(min=2, help="How many there are to be in all")],
    dry_run: DryRun = False,
) -> None:
    """Add partitions. Keys may land elsewhere from then on."""
    from headrace_cli import admin_view

    with session.admin() as admin:
        made = admin_view.add_partitions(admin, name, count, dry_run=dry_run)
    if session.output is not Output.TABLE:
        session.show(made)
        return
    session.say(f"{name} {'could have' if dry_run else 'has'} {len(made['partitions'])} partitions")


def delete(
    session: Session,
    names: Annotated[list[str], typer.Argument(help="The topics", autocompletion=completing.topics)],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete topics with all their records."""
    from headrace_cli import admin_view

    if dry_run:
        with session.admin() as admin:
            rows = [admin_view.describe_topic(admin, name) for name in dict.fromkeys(names)]
        plan = [{"name": r["name"], "partitions": len(r["partitions"]), "records": r["records"]} for r in rows]
        session.show_rows("topics", plan)
        session.say(f"a plan, nothing was changed: {format_count(len(rows), 'topic')} would be deleted")
        return
    confirm(f"delete {', '.join(names)} with all records?", yes)
    with session.admin() as admin:
        _delete_each(session, admin, list(dict.fromkeys(names)))


def _delete_each(session: Session, admin: AdminClient, names: list[str]) -> None:
    """One after the other, and no further than the first that fails; what became of each is told all the same."""
    from headrace_cli.group_view import error_of

    rows: list[dict[str, Any]] = []
    try:
        for name in names:
            try:
                admin.delete_topic(name)
            except HeadraceError as error:
                rows.append({"name": name, "error": error_of(error, f"/v1/topics/{name}")})
                raise
            rows.append({"name": name, "error": None})
            if session.output is Output.TABLE:
                session.say(f"deleted: {name}")
    finally:
        if session.output is not Output.TABLE:
            session.show_rows("topics", rows)


def trim(
    session: Session,
    name: Name,
    *,
    offset: Annotated[
        int | None, typer.Option("--before", min=0, max=OFFSET_MAX, help="Remove what is before this offset")
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option("--before-time", metavar="TIME", help="Remove what is before the first record at or after it"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all records there are now")] = False,
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove records from the start of partitions, for good."""
    from headrace_cli import admin_view
    from headrace_cli.commands.starts import parse_time
    from headrace_common.runtime.clock import SystemClock

    if [offset is not None, before_time is not None, everything].count(True) != 1:
        raise typer.BadParameter("give one of --before OFFSET, --before-time TIME, or --all")
    what = (
        "all records" if everything else f"records before {f'offset {offset}' if offset is not None else before_time}"
    )
    time_ms = None if before_time is None else parse_time(before_time, SystemClock().now_ms(), "--before-time")
    where = f"partitions {', '.join(map(str, partition))}" if partition else "every partition"
    if not dry_run:
        confirm(f"remove {what} of {where} of {name}?", yes)
    with session.admin() as admin:
        if time_ms is None:
            offsets = admin_view.trim_offsets(admin, name, partition, -1 if offset is None else offset)
        else:
            with session.consumer() as consumer:
                offsets = admin_view.trim_offsets_before_time(admin, consumer, name, partition, time_ms)
        rows = admin_view.trim_plan(admin, name, offsets) if dry_run else admin_view.trim(admin, offsets)
    columns = [] if dry_run else ["partition", "log_start_offset"]
    session.show_rows("partitions", rows, *columns)
    if dry_run:
        session.say("a plan, nothing was changed")


def strays(session: Session) -> None:
    """List logs that brokers have and the cluster does not know, by topic. Asks every broker."""
    from headrace_cli import restore_view

    with session.admin() as admin:
        found = restore_view.strays(admin)
    if session.output is not Output.TABLE:
        session.show(found)
    else:
        rows = [restore_view.stray_for_people(row) for row in found["strays"]]
        session.show(rows, "topic_id", "name", "partitions", "logs", "brokers", "note", empty="there are no stray logs")
    for broker in found["silent_brokers"]:
        session.say(f"note: broker {broker} does not answer; what it has is not known")


def adopt(
    session: Session,
    topic_id: Annotated[str, typer.Argument(metavar="ID", help="32 hexadecimal digits, of `topic strays`")],
    *,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Without: the name that it had")] = None,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", min=0, max=PARTITIONS_PER_TOPIC_MAX, help="Without: as many as brokers remember"
        ),
    ] = 0,
    dry_run: DryRun = False,
) -> None:
    """Make a topic of stray logs; the longest of them lead."""
    from headrace_cli import restore_view

    with session.admin() as admin:
        made = restore_view.adopt(admin, topic_id, name, partitions, dry_run=dry_run)
    if session.output is not Output.TABLE:
        session.show(made)
        return
    verb = "could be adopted" if dry_run else "adopted"
    session.say(f"{verb}: {made['name']}, {format_count(len(made['partitions']), 'partition')}")
