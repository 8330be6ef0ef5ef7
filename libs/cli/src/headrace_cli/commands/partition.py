"""``headrace partition``: which brokers hold and lead the partitions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commanding import command, pairs
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, bytes_for_people, format_count
from headrace_cli.session import Session
from headrace_cli.terminal import is_terminal

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace_cli.replication_view import Named, Row

HELP = "Which brokers hold and lead the partitions"

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check it, and change nothing")]
Throttle = Annotated[
    int | None,
    typer.Option("--throttle", min=1, metavar="BYTES_PER_S", help="How fast brokers copy; off again after --wait"),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="How long --wait waits, in seconds")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace partition``."""
    command(app)(move)
    command(app)(cancel)
    command(app)(reassignments)
    command(app)(throttle)
    command(app)(elect)


def move(
    session: Session,
    moves: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-N=1,2,3...]", help="Broker ids, preferred leader first")
    ] = None,
    *,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Moves as JSON, as `cluster rebalance --plan -o json` prints"),
    ] = None,
    dry_run: DryRun = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout: Timeout = 3_600,
    status: Annotated[bool, typer.Option("--status", help="Show moves in progress instead")] = False,
) -> None:
    """Give partitions other replicas. New replicas copy while the old ones serve."""
    if status:
        reassignments(session)
        return
    if (from_file is None) == (not moves):
        raise typer.BadParameter("name moves as TOPIC-N=1,2,3, or give --from-file FILE")
    wanted = read_moves(from_file) if from_file is not None else parse_moves(moves or [])
    if not wanted:
        session.report({"partitions": []}, "there is nothing to move")
        return
    with session.admin() as admin:
        _move(session, admin, wanted, dry_run, throttle)
        if wait and not dry_run:
            wait_until_moved(session, admin, list(wanted), timeout, throttled=throttle is not None)


def _move(
    session: Session, admin: AdminClient, wanted: dict[Named, list[int]], dry_run: bool, throttle: int | None
) -> None:
    from headrace_cli import replication_view as view

    topics = view.Topics(admin)
    topics.refs(list(wanted))
    if throttle is not None and not dry_run:
        view.set_throttle(admin, throttle)
    rows = view.reassign(admin, wanted, topics, dry_run=dry_run)
    told = "could be moved" if dry_run else "on the move"
    _show_outcomes(session, rows, told, still="in place")


def wait_until_moved(
    session: Session, admin: AdminClient, partitions: list[Named], timeout: float, *, throttled: bool
) -> None:
    """For ``--wait``. Raises: CommandFailed when it takes longer."""
    from headrace_cli import moving

    moving.wait_for_moves(session, admin, set(partitions), timeout)
    if throttled:
        moving.clear_throttle(session, admin)
    session.say(f"done: {format_count(len(partitions), 'partition')}")


def cancel(
    session: Session,
    partitions: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC-N...]", help="Partitions to cancel")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All moves in progress")] = False,
) -> None:
    """Stop moving: back to the replicas before it."""
    from headrace_cli import replication_view as view

    if all_ == bool(partitions):
        raise typer.BadParameter("name partitions as TOPIC-N, or give --all")
    with session.admin() as admin:
        topics = view.Topics(admin)
        if all_:
            under_way = view.reassignments(admin)["reassignments"]
            chosen = [(p["topic"], p["partition"]["partition"]) for p in under_way]
        else:
            chosen = [one for text in partitions or [] for one in topics.resolve(text)]
        if not chosen:
            session.report({"partitions": []}, "nothing is under way")
            return
        rows = view.reassign(admin, {one: [] for one in chosen}, topics, dry_run=False)
    _show_outcomes(session, rows, "cancelled")


def reassignments(session: Session) -> None:
    """Show partitions whose replicas are being changed, and how far each new replica has come."""
    from headrace_cli import replication_view as view

    with session.admin() as admin:
        found = view.reassignments(admin, measure_ms=1_000)
    if session.output is not Output.TABLE:
        session.show(found)
        return
    session.show(view.progress_rows(found["reassignments"]), empty="nothing is under way")
    if found["throttle_bytes_per_s"] is not None:
        session.say(f"throttle: {bytes_for_people(found['throttle_bytes_per_s'])}/s per broker")


def throttle(
    session: Session,
    rate: Annotated[
        str | None, typer.Argument(metavar="[BYTES_PER_S|off]", help="Without it: show the current rate")
    ] = None,
) -> None:
    """Show or change how fast each broker copies for replicas that move; also for what is under way."""
    from headrace_cli import replication_view as view

    if rate is not None and rate != "off" and not (rate.isascii() and rate.isdigit() and int(rate) > 0):
        raise typer.BadParameter(f"{rate!r}: give bytes per second, or off")
    with session.admin() as admin:
        if rate is not None:
            now = None if rate == "off" else int(rate)
            view.set_throttle(admin, now)
        else:
            now = view.reassignments(admin)["throttle_bytes_per_s"]
    if session.output is not Output.TABLE:
        session.show({"bytes_per_s": now})
    else:
        session.say("throttle: off" if now is None else f"throttle: {bytes_for_people(now)}/s per broker")


def elect(
    session: Session,
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC|TOPIC-N...]", help="Without any: all, preferred leaders")
    ] = None,
    *,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Without a leader: any live replica; records may be lost")
    ] = False,
    without_missing: Annotated[
        bool,
        typer.Option("--without-missing", help="Without a leader: give up replicas that are away; may lose records"),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
) -> None:
    """Elect leaders: the preferred ones; or, where nobody leads, such that may lack records."""
    from headrace_cli import replication_view as view

    if unclean and without_missing:
        raise typer.BadParameter("give --unclean or --without-missing, not both")
    kind = "unclean" if unclean else "without-missing" if without_missing else "preferred"
    if kind != "preferred":
        if not partitions:
            raise typer.BadParameter(f"name the partitions for --{kind}")
        confirm(f"an election of type {kind} of {', '.join(partitions)} may lose records for good; do it?", yes)
    with session.admin() as admin:
        topics = view.Topics(admin)
        chosen = [one for text in partitions or [] for one in topics.resolve(text)]
        rows = view.elect(admin, kind, chosen, topics)
        _name(rows, admin)
    not_needed = [row for row in rows if _code(row) == "ELECTION_NOT_NEEDED"]
    rest = [row for row in rows if _code(row) != "ELECTION_NOT_NEEDED"]
    if session.output is Output.TABLE and not rest:
        session.say(
            f"nothing to do: {format_count(len(not_needed), 'partition')} led as asked" if rows else "nothing to do"
        )
        return
    _show_outcomes(session, rest if session.output is Output.TABLE else rows, "elected", ignored="ELECTION_NOT_NEEDED")


def _name(rows: list[Row], admin: AdminClient) -> None:
    """Names for topics that were not named by the user."""
    if all(row["topic"] is not None and not _is_id(row["topic"]) for row in rows):
        return
    names = {t.topic_id.hex(): t.name for t in admin.list_topics(include_internal=True)}
    for row in rows:
        row["topic"] = names.get(row["topic"], row["topic"])


def _is_id(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")


def confirm(question: str, yes: bool) -> None:
    """
    Ask at a terminal; elsewhere only ``--yes`` will do.

    Raises:
        CommandFailed: nobody said yes.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} Nobody is here to ask", ExitCode.USAGE, "Give --yes.")
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was done", ExitCode.FAILED, "Answer y, or give --yes.")


def agreed(question: str) -> bool:
    """Whether a person at a terminal says yes; False where nobody is there, who has options for that."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr) and typer.confirm(question, err=True)


def _show_outcomes(
    session: Session, rows: list[Row], told: str, ignored: str | None = None, *, still: str | None = None
) -> None:
    """
    What became of each; ``still``: of those that do not move, if that is something else.

    Raises:
        CommandFailed: one was refused.
    """
    failed = [row for row in rows if row["error"] is not None and _code(row) != ignored]
    if session.output is Output.TABLE:
        shown = [_outcome_for_people(row, told, still) for row in rows]
        session.show(shown, "topic", "partition", "leader", "replicas", "isr", "result")
    else:
        session.show({"partitions": rows})
    if failed:
        from headrace_cli.exits import exit_code_of, hint_of
        from headrace_common.core.problems import error_of_problem

        first = error_of_problem(failed[0]["error"])
        which = f"{failed[0]['topic']}-{failed[0]['partition']}"
        text = f"{format_count(len(failed), 'partition')} of {len(rows)} refused; {which}: {first}"
        raise CommandFailed(text, exit_code_of(first), hint_of(first))


def _code(row: Row) -> str | None:
    return None if row["error"] is None else str(row["error"]["code"])


def _outcome_for_people(row: Row, told: str, still: str | None) -> Row:
    now, error = row["current"] or {}, row["error"]
    moving = bool(now.get("adding") or now.get("removing"))
    done = told if still is None or moving else still
    shown = {name: row[name] for name in ("topic", "partition")} | {
        n: now.get(n) for n in ("leader", "replicas", "isr")
    }
    return shown | {"result": done if error is None else f"{error['code']}: {error['detail']}"}


def parse_moves(texts: list[str]) -> dict[Named, list[int]]:
    """``["a-0=1,2"]`` as ``{("a", 0): [1, 2]}``. Raises: BadParameter when it is not written so."""
    from headrace_cli.replication_view import parse_partition

    found: dict[Named, list[int]] = {}
    for text, ids in pairs(texts, "TOPIC-N=1,2,3").items():
        one = parse_partition(text, ":") or parse_partition(text, "-")
        parts = ids.split(",")
        if one is None or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            raise typer.BadParameter(f"{text}={ids}: write it as TOPIC-N=1,2,3 with broker ids")
        if one in found:
            raise typer.BadParameter(f"{text} is given twice")
        found[one] = [int(part) for part in parts]
    return found


def read_moves(path: Path) -> dict[Named, list[int]]:
    """
    Moves from a file: a plan of ours, a list of ``{"topic", "partition", "replicas"}``, or Kafka's ``{"partitions"}``.

    Raises:
        CommandFailed: the file is not that.
    """
    shape = 'It takes {"moves": [{"topic": "a", "partition": 0, "replicas": [1, 2]}]}.'
    try:
        data: Any = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CommandFailed(f"{path} is not JSON: {error}", ExitCode.USAGE, shape) from None
    entries = data.get("moves", data.get("partitions")) if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise CommandFailed(f"{path} has no moves", ExitCode.USAGE, shape)
    found: dict[Named, list[int]] = {}
    for at, entry in enumerate(entries):
        try:
            one, replicas = (entry["topic"], entry["partition"]), entry["replicas"]
            good = isinstance(one[0], str) and all(type(n) is int and n >= 0 for n in (one[1], *replicas))
        except (KeyError, TypeError):
            good = False
        if not good or not replicas or one in found:
            raise CommandFailed(f"{path}: move {at} is not well-formed, or is there twice", ExitCode.USAGE, shape)
        found[one] = list(replicas)
    return found
