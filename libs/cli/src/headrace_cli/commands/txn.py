"""``headrace txn``: transactions, what nobody decides, and what holds readers back."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commanding import command
from headrace_cli.commands.partition import confirm
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.transactions import PreparedTransaction
    from headrace_cli.txn_view import Row

LOOK_MS = 20_000
"""The admin service waits 15 s for a coordinator that is on its way, and says then what is missing."""

HELP = "Transactions: open, prepared, and those that hold readers back"

OlderThan = Annotated[str, typer.Option("--older-than", metavar="10m", help="Only those for at least that long")]
Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this one; repeatable")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace txn``."""
    command(app, "list")(list_)
    command(app)(describe)
    command(app)(prepared)
    command(app, "open")(open_)
    command(app, "find-hanging")(find_hanging)
    command(app)(commit)
    command(app)(abort)


def list_(
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only these: ongoing, prepared, ...")
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", metavar="N", min=0, max=2**63 - 1, help="Only who has it")
    ] = None,
    older_than: OlderThan = "0s",
) -> None:
    """List the transactional ids of all coordinators. Ends with 4 where some could not be asked."""
    from headrace_cli import txn_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.list_transactions(admin, state or [], producer_id or [], older_than)
    if session.output is Output.TABLE:
        now_ms = _now_ms()
        rows = [t | {"open_seconds": view.age_seconds(t["started_at_ms"], now_ms)} for t in found["transactions"]]
        columns = ["transactional_id", "state", "producer_id", "producer_epoch", "open_seconds", "coordinator"]
        some = bool(state or producer_id or older_than != "0s" or found["missing_shards"])
        empty = "none of these" if some else "there are none; a producer with a transactional_id makes one"
        session.show(rows, *columns, empty=empty)
    else:
        session.show(found)
    _end_whole(found)


def describe(
    session: Session, transactional_id: Annotated[str, typer.Argument(metavar="ID", help="The transactional id")]
) -> None:
    """Show a transactional id: its state, its producer, and what its open transaction writes to."""
    from headrace_cli import txn_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.describe(admin, transactional_id)
    _show_one(session, found)


def _show_one(session: Session, found: Row) -> None:
    from headrace_cli import txn_view as view

    if session.output is not Output.TABLE:
        session.show(found)
        return
    partitions = found["partitions"]
    session.show(view.format_transaction(found))
    sys.stdout.write("\n")
    ending = any(p["without_marker"] for p in partitions)
    columns = ["topic", "partition", *(["without_marker"] if ending else [])]
    session.show(partitions, *columns, empty="it has written to no partition, or nothing is open")


def prepared(session: Session, older_than: OlderThan = "0s") -> None:
    """List what is prepared and not decided, oldest first, with the tokens that decide it."""
    from headrace_cli import txn_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.list_prepared(admin, older_than)
    if session.output is Output.TABLE:
        rows = view.format_prepared(found, _now_ms())
        columns = ["transactional_id", "producer_id", "prepared", "age_seconds", "overdue", "token"]
        session.show(rows, *columns, empty="nothing is prepared")
        if rows:
            session.say("`headrace txn commit TOKEN` or `headrace txn abort TOKEN` decides; ask first whose it is")
    else:
        session.show(found)
    _end_whole(found)


def open_(session: Session, topic: Topics = None, older_than: OlderThan = "0s") -> None:
    """List what is open in the logs of partitions, so that readers of read_committed wait; oldest first."""
    from headrace_cli import txn_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.still_open(admin, topic or [], older_than)
    _show_open(session, found, "nothing is open")
    _end_whole(found)


def find_hanging(
    session: Session,
    topic: Topics = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="20m", help="Else: longer than any transaction may be open"),
    ] = None,
) -> None:
    """Find what is open in partitions and no coordinator is going to end: readers of read_committed wait for ever."""
    from headrace_cli import txn_view as view

    with session.admin(default_api_timeout_ms=LOOK_MS) as admin:
        found = view.still_open(admin, topic or [], older_than, hanging=True)
    _show_open(session, found, "nothing hangs")
    hanging = [row for row in found["transactions"] if row["standing"] == "hanging"]
    if hanging and session.output is Output.TABLE:
        first = hanging[0]
        session.say(
            f"`headrace txn abort --partition {first['topic']}-{first['partition']} "
            f"--producer-id {first['producer_id']}` ends the first"
        )
    _end_whole(found)


def _show_open(session: Session, found: Row, empty: str) -> None:
    from headrace_cli import txn_view as view

    if session.output is not Output.TABLE:
        session.show(found)
        return
    now_ms = _now_ms()
    rows = [view.open_for_people(t, now_ms) for t in found["transactions"]]
    columns = ["partition", "producer_id", "transactional_id", "state", "standing", "first_offset", "held_back"]
    session.show(rows, *columns, "open_seconds", empty=empty)
    if found["more"]:
        session.say(f"and {found['more']:,} more; --topic or --older-than shows fewer")


def commit(
    session: Session,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="As `headrace txn prepared` shows it")],
    yes: Yes = False,
) -> None:
    """Commit a prepared transaction. Ends with 1 if it had been aborted before."""
    wanted = _token(token)
    if wanted is None:
        raise CommandFailed(
            "this is not the token of a prepared transaction",
            ExitCode.USAGE,
            "`headrace txn prepared` shows them; transactions that are not prepared are committed by their producers.",
        )
    confirm(f"commit the prepared transaction of {wanted.transactional_id}?", yes)
    with session.admin() as admin:
        _decide(session, admin, wanted, commit=True)


def abort(
    session: Session,
    what: Annotated[
        str | None,
        typer.Argument(metavar="[ID|TOKEN]", help="A transactional id, or the token of a prepared transaction"),
    ] = None,
    *,
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="TOPIC-N", help="End what hangs there, instead")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", metavar="N", min=0, max=2**63 - 1, help="Only what it has open")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be aborted")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --partition: also what began a moment ago; never what a coordinator knows"),
    ] = False,
    yes: Yes = False,
) -> None:
    """Abort an open transaction, a prepared one by its token, or what hangs in a partition."""
    if (what is None) == (partition is None):
        raise typer.BadParameter("name a transactional id or a token, or --partition TOPIC-N for what hangs there")
    if force and partition is None:
        raise typer.BadParameter("--force goes with --partition")
    token = None if what is None else _token(what)
    if token is not None and producer_id is not None:
        raise typer.BadParameter("a token names its producer; leave out --producer-id")
    with session.admin() as admin:
        if partition is not None:
            _abort_hanging(
                session, admin, _parse_partition(partition), producer_id, dry_run=dry_run, force=force, yes=yes
            )
        elif token is not None:
            _abort_prepared(session, admin, token, dry_run=dry_run, yes=yes)
        else:
            assert what is not None, "this was checked"
            _abort_id(session, admin, what, producer_id, dry_run=dry_run, yes=yes)


def _abort_id(
    session: Session, admin: AdminClient, i: str, producer_id: int | None, *, dry_run: bool, yes: bool
) -> None:
    from headrace_cli import txn_view as view

    before = view.abort(admin, i, producer_id, dry_run=True)
    found = before["transaction"]
    if dry_run:
        _show_aborted(session, before)
        session.say("nothing was changed; without --dry-run it is aborted, and its producer goes on with its next")
        return
    where = format_count(len(found["partitions"]), "partition")
    confirm(f"abort the transaction of {i}, open in {where}? All that it wrote is lost", yes)
    done = view.abort(admin, i, found["producer_id"], found["producer_epoch"], dry_run=False)
    if session.output is not Output.TABLE:
        _show_aborted(session, done)
    session.say(f"aborted: {i}, in {where}; readers go on in a moment")


def _show_aborted(session: Session, found: Row) -> None:
    if session.output is Output.TABLE:
        _show_one(session, found["transaction"])
    else:
        session.show(found)


def _abort_prepared(
    session: Session, admin: AdminClient, token: PreparedTransaction, *, dry_run: bool, yes: bool
) -> None:
    i = token.transactional_id
    if dry_run:
        from headrace_cli import txn_view as view

        found = view.describe(admin, i)
        _show_one(session, found)
        prepared_now = found["token"] == str(token)
        will = f"the prepared transaction of {i} is aborted" if prepared_now else "nothing happens: it is not prepared"
        session.say(f"nothing was changed; without --dry-run {will}")
        return
    confirm(f"abort the prepared transaction of {i}?", yes)
    _decide(session, admin, token, commit=False)


def _decide(session: Session, admin: AdminClient, token: PreparedTransaction, *, commit: bool) -> None:
    """Raises: AlreadyDecided where it was decided otherwise before."""
    if commit:
        admin.commit_prepared(token)
    else:
        admin.abort_prepared(token)
    i = token.transactional_id
    if session.output is not Output.TABLE:
        session.show({"transactional_id": i, "committed": commit})
    session.say(f"{'committed' if commit else 'aborted'}: {i}; readers see it in a moment")


def _abort_hanging(
    session: Session,
    admin: AdminClient,
    partition: tuple[str, int],
    producer_id: int | None,
    *,
    dry_run: bool,
    force: bool,
    yes: bool,
) -> None:
    from headrace_cli import txn_view as view

    before = view.abort_hanging(admin, partition, producer_id, dry_run=True, force=force)
    row = view.open_for_people(before["transaction"], _now_ms())
    producer, name = row["producer_id"], row["partition"]
    if dry_run:
        session.show(row if session.output is Output.TABLE else before)
        session.say(f"nothing was changed; without --dry-run what producer {producer} wrote there is aborted")
        return
    held = format_count(row["held_back"], "record")
    confirm(f"abort what producer {producer} has open in {name}, which holds {held} back?", yes)
    done = view.abort_hanging(admin, partition, producer, dry_run=False, force=force)
    if session.output is not Output.TABLE:
        session.show(done)
    session.say(f"aborted: producer {producer} in {name}; readers of read_committed go on")


def _parse_partition(text: str) -> tuple[str, int]:
    """``TOPIC-N`` or ``TOPIC:N``. Raises: BadParameter."""
    for separator in (":", "-"):
        topic, found, number = text.rpartition(separator)
        if found and topic and number.isascii() and number.isdigit() and int(number) < 2**31:
            return topic, int(number)
    raise typer.BadParameter(f"{text!r}: write it as TOPIC-N, such as flights-0")


def _token(text: str) -> PreparedTransaction | None:
    """The token that a text is; None: it is none, so it is a transactional id."""
    from headrace.errors import Rejected
    from headrace.transactions import PreparedTransaction

    try:
        token = PreparedTransaction.parse(text)
    except Rejected:
        return None
    # Short ids may happen to be read as a message: only one that has a nonce and is written so is a token.
    return token if token.nonce and str(token) == text.strip().rstrip("=") else None


def _end_whole(found: Row) -> None:
    """Raises: CommandFailed where somebody could not be asked."""
    missing: list[dict[str, Any]] = found["missing_shards"]
    if missing:
        numbers = ", ".join(str(m["shard"]) for m in missing[:10]) + (", ..." if len(missing) > 10 else "")
        text = f"{format_count(len(missing), 'shard')} cannot answer ({numbers}), so transactions may be missing; "
        raise CommandFailed(
            text + missing[0]["error"]["detail"], ExitCode.UNREACHABLE, "Try again; `headrace cluster status`."
        )
    unasked: list[dict[str, Any]] = found.get("unasked", [])
    if unasked:
        number = sum(len(u["partitions"]) for u in unasked)
        text = f"{format_count(number, 'partition')} could not be asked, so more may be open; "
        raise CommandFailed(
            text + unasked[0]["error"]["detail"], ExitCode.UNREACHABLE, "Try again; `headrace cluster health`."
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
