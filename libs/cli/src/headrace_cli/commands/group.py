"""``headrace group``: consumer groups, how far they are behind, and where they go on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli import completing
from headrace_cli.commanding import command, read_text
from headrace_cli.commands.partition import DryRun, agreed, confirm
from headrace_cli.exits import CommandFailed, ExitCode, exit_code_of, hint_of
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace_cli.group_view import Row

LOOK_MS = 20_000
"""The admin service waits 15 s for a coordinator that is on its way, and says then what is missing."""

HELP = "Consumer groups: members, lag and offsets"

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id", autocompletion=completing.groups)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Only this one; repeatable", autocompletion=completing.topics),
]
TopicParts = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="All of it, or some partitions; repeatable"),
]
FromFile = Annotated[
    Path | None,
    typer.Option("--from-file", metavar="FILE", help="CSV topic,partition,offset, as `group export` writes; -: stdin"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace group``."""
    command(app, "list")(list_)
    command(app)(describe)
    command(app)(lag)
    command(app)(reset)
    command(app)(export)
    command(app)(delete)
    command(app, "delete-offsets")(delete_offsets)


def list_(
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only these: stable, empty, ...")
    ] = None,
) -> None:
    """List the groups of all coordinators. Ends with 4 where some could not be asked."""
    from headrace_cli import group_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.list_groups(admin, state or [])
    if session.output is Output.TABLE:
        session.show(found["groups"], empty="there are no groups; a consumer with a group_id makes one")
    else:
        session.show(found)
    missing = found["missing_shards"]
    if missing:
        numbers = ", ".join(str(m["shard"]) for m in missing[:10]) + (", ..." if len(missing) > 10 else "")
        text = f"{format_count(len(missing), 'shard')} cannot answer ({numbers}), so groups may be missing; "
        raise CommandFailed(
            text + missing[0]["error"]["detail"], ExitCode.UNREACHABLE, "Try again; `headrace cluster status`."
        )


def describe(session: Session, group: Group) -> None:
    """Show a group: its state, its members with what they hold, and the items of a work group."""
    from headrace_cli import group_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.describe(admin, group)
    if session.output is not Output.TABLE:
        session.show(found)
        return
    members = [view.member_for_people(m) for m in found.pop("members")]
    items = [view.item_for_people(item) for item in found.pop("items")]
    found["assignor"] = found["assignor"] or None
    terms = found.pop("terms")
    if terms:
        found["terms"] = "; ".join(f"{name}: {said}" for name, said in sorted(terms.items()))
    session.show(found)
    sys.stdout.write("\n")
    columns = ["member_id", "client_id", "client_address", "group_instance_id", "state"]
    if found["protocol"] == "work":
        session.show(members, *columns, "zone", "endpoint", empty="it has no members")
        sys.stdout.write("\n")
        session.show(items, "id", "owner", "epoch", "weight", "standby", "warm_up", empty="it has no items")
        return
    columns.append("assigned")
    moving = any(m["target"] != m["assigned"] for m in members if m["target"])
    session.show(members, *columns, *(["target"] if moving else []), empty="it has no members")


def lag(
    session: Session,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="One or more", autocompletion=completing.groups)
    ],
    topic: Topics = None,
    seconds: Annotated[
        bool, typer.Option("--seconds/--no-seconds", help="Also the age of the first unread record")
    ] = True,
) -> None:
    """Show how far groups are behind, per partition: in records, and in seconds."""
    from headrace_cli import group_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = [view.lag(admin, group, topic or [], ages=seconds) for group in groups]
    rows = [{"group": lag["group"]} | row for lag in found for row in lag["partitions"]]
    if session.output is Output.TABLE:
        columns = ["topic", "partition", "committed_offset", "end_offset", "lag"]
        columns = [*(["group"] if len(groups) > 1 else []), *columns, *(["lag_seconds"] if seconds else [])]
        session.show(rows, *columns, "client_id", empty="it has committed nothing, and holds nothing")
        if rows:
            session.say(f"{format_count(sum(row['lag'] or 0 for row in rows), 'record')} behind in all")
    else:
        session.show(found[0] if len(found) == 1 else {"groups": found})
    _end_with(rows, "partition", lambda row: f"{row['topic']}-{row['partition']}", "not fully known")


def reset(
    session: Session,
    group: Group,
    *,
    topic: TopicParts = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that the group has committed")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record that still exists")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="One past the last record")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="What is committed; else the end")] = False,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", metavar="TIME", help="2026-11-21T10:00:00Z, or ms since 1970")
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, max=2**63 - 1, metavar="N")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", min=-(2**63), max=2**63 - 1, help="Negative: back")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="1h30m", help="So long ago; also PT1H30M")
    ] = None,
    from_file: FromFile = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only show the plan")] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="As --execute: do not ask")] = False,
    export_plan: Annotated[bool, typer.Option("--export", help="Print the plan as CSV, for --from-file")] = False,
) -> None:
    """
    Plan where a group without members goes on; --execute does it. Also makes a group that does not exist.

    At a terminal it shows the plan and asks.
    """
    from headrace_cli import group_view as view

    position = {"earliest": to_earliest, "latest": to_latest, "current": to_current}
    ways: dict[str, Any] = {
        "to": next((name for name, given in position.items() if given), None),
        "to_datetime": to_datetime,
        "to_offset": to_offset,
        "shift_by": shift_by,
        "by_duration": by_duration,
    }
    given = {name: value for name, value in ways.items() if value is not None}
    if len(given) + (from_file is not None) != 1 or sum(position.values()) > 1:
        raise typer.BadParameter("give exactly one of --to-..., --shift-by, --by-duration and --from-file")
    if (from_file is not None) + all_topics + bool(topic) != 1:
        raise typer.BadParameter("name --topic TOPIC (often, if need be) or --all-topics; a file names its own")
    if dry_run and (execute or yes):
        raise typer.BadParameter("--dry-run only shows the plan, --execute and --yes carry it out; give one of them")
    if from_file is not None:
        given = {"to_offset": offsets_from(from_file, group)}
    with session.admin() as admin:
        found = view.plan(admin.reset_offsets(group, parts(topic), **given, execute=execute or yes))
        _show_plan(session, found, as_csv=export_plan)
        asks = not (found["executed"] or dry_run or export_plan or found["members"])
        if asks and agreed(f"set {format_count(len(found['partitions']), 'offset')} of group {group}?"):
            _show_plan(
                session, view.plan(admin.reset_offsets(group, parts(topic), **given, execute=True)), as_csv=False
            )


def offsets_from(path: Path, group: str) -> dict[tuple[str, int], int]:
    """Offsets of a file, or of stdin. Raises: CommandFailed."""
    from headrace_cli.offset_file import read_offsets

    return read_offsets(read_text(str(path), "CSV: topic,partition,offset"), group, str(path))


def _show_plan(session: Session, found: Row, *, as_csv: bool) -> None:
    """The plan, and what is to be done next. Raises: CommandFailed where some of it was not carried out."""
    from headrace_cli import group_view

    rows = found["partitions"]
    if as_csv:
        from headrace_cli.offset_file import write_offsets

        sys.stdout.write(write_offsets((r["topic"], r["partition"], r["new_offset"]) for r in rows))
        sys.stdout.flush()
    elif session.output is Output.TABLE:
        columns = ["topic", "partition", "old_offset", "new_offset", "change", "end_offset"]
        noted = any(row["note"] for row in rows)
        failed = any(row["error"] for row in rows)
        shown = [group_view.with_change(row) for row in rows]
        session.show(shown, *columns, *(["note"] if noted else []), *(["error"] if failed else []))
    else:
        session.show(found)
    done = sum(row["error"] is None for row in rows)
    if found["executed"]:
        session.say(f"{format_count(done, 'offset')} of group {found['group']} set")
    else:
        members = f"; it has {format_count(found['members'], 'member')}: stop them first" if found["members"] else ""
        made = " (there is no such group yet: it will be made)" if found["new_group"] else ""
        session.say(f"a plan, nothing was changed{made}; --execute carries it out{members}")
    _end_with(rows, "partition", lambda row: f"{row['topic']}-{row['partition']}", "not set")


def export(session: Session, group: Group, topic: Topics = None) -> None:
    """Print what a group has committed as CSV: topic,partition,offset, for `group reset --from-file`."""
    from headrace_cli import group_view as view
    from headrace_cli.offset_file import write_offsets

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        offsets = view.list_committed(admin, group, topic or [])
    if session.output is not Output.TABLE:
        session.show({"offsets": [{"topic": t, "partition": n, "offset": o} for t, n, o in offsets]})
    elif offsets:
        sys.stdout.write(write_offsets(offsets))
        sys.stdout.flush()
    else:
        session.say("it has committed nothing")


def delete(
    session: Session,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="One or more", autocompletion=completing.groups)
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Forget groups without members, and all that they have committed."""
    from headrace_cli import group_view as view

    if dry_run:
        with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
            rows = [_offsets_row(group, offset) for group in groups for offset in view.list_committed(admin, group, [])]
        _show_forgotten(session, rows)
        return

    confirm(f"delete {', '.join(groups)}, with their positions in all topics?", yes)
    with session.admin() as admin:
        rows = view.delete(admin, list(dict.fromkeys(groups)))
    if session.output is not Output.TABLE:
        session.show({"groups": rows})
    for row in rows:
        if row["error"] is None:
            session.say(f"deleted: {row['group']}")
    _end_with(rows, "group", lambda row: str(row["group"]), "not deleted")


def _offsets_row(group: str, offset: tuple[str, int, int]) -> Row:
    topic, partition, committed = offset
    return {"group": group, "topic": topic, "partition": partition, "committed_offset": committed}


def _show_forgotten(session: Session, rows: list[Row]) -> None:
    columns = ("group", "topic", "partition", "committed_offset")
    session.show_rows("offsets", rows, *columns, empty="nothing is committed")
    session.say(f"a plan, nothing was changed: {format_count(len(rows), 'offset')} would be forgotten")


def delete_offsets(
    session: Session, group: Group, topic: TopicParts = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Forget what a group has committed in topics that none of its members reads."""
    from headrace_cli import group_view as view

    if not topic:
        raise typer.BadParameter("name the topics with --topic; `headrace group delete` forgets all")
    if dry_run:
        wanted = parts(topic)
        with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
            offsets = view.list_committed(admin, group, [])
        _show_forgotten(session, [_offsets_row(group, o) for o in offsets if o[0] in wanted or o[:2] in wanted])
        return
    confirm(f"forget the positions of {group} in {', '.join(topic)}?", yes)
    with session.admin() as admin:
        rows = view.delete_offsets(admin, group, parts(topic))
    if session.output is not Output.TABLE:
        session.show({"partitions": rows})
    done = sum(row["error"] is None for row in rows)
    session.say(f"{format_count(done, 'offset')} of group {group} forgotten")
    _end_with(rows, "partition", lambda row: f"{row['topic']}-{row['partition']}", "not forgotten")


def parts(topics: list[str] | None) -> list[str | tuple[str, int]]:
    """
    ``["a", "b:0,1"]`` as ``["a", ("b", 0), ("b", 1)]``.

    Raises:
        BadParameter: it is not written so.
    """
    found: list[str | tuple[str, int]] = []
    for text in topics or []:
        topic, colon, numbers = text.partition(":")
        listed = [n.strip() for n in numbers.split(",")]
        if not topic or (colon and not all(n.isascii() and n.isdigit() and int(n) < 2**31 for n in listed)):
            raise typer.BadParameter(f"{text!r}: write it as TOPIC, or as TOPIC:0,1 for some of its partitions")
        found += [(topic, int(n)) for n in listed] if colon else [topic]
    return found


def _end_with(rows: list[Row], what: str, named: Any, told: str) -> None:
    """Raises: CommandFailed with the first row's error, if some row has one."""
    from headrace_common.core.problems import error_of_problem

    failed = [row for row in rows if row["error"] is not None]
    if failed:
        first = error_of_problem(failed[0]["error"])
        text = f"{format_count(len(failed), what)} of {len(rows)} {told}; {named(failed[0])}: {first}"
        raise CommandFailed(text, exit_code_of(first), hint_of(first))
