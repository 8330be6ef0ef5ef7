"""``headrace verify``: whether a cluster keeps what it acknowledged while somebody breaks it."""

from __future__ import annotations

import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commanding import command
from headrace_cli.commands.partition import agreed
from headrace_cli.exits import CommandFailed, ExitCode, exit_code_of
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session
from headrace_cli.terminal import Progress, hint
from headrace_common.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace_verify.plan import Plan
    from headrace_verify.report import Report
    from headrace_verify.running import State

HELP = "Whether the cluster keeps what it acknowledged while you break it"
REPLICAS = 3
EXAMPLES = 3

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace verify``."""
    command(app)(run)


def run(
    session: Session,
    *,
    minutes: Annotated[float, typer.Option(help="How long the load runs")] = 5.0,
    rate: Annotated[float, typer.Option(help="Operations a second: sends, batches, polls, transactions")] = 100.0,
    keys: Annotated[int, typer.Option(help="Partitions of each topic")] = 6,
    topics_prefix: Annotated[str, typer.Option(metavar="NAME", help="How its topics and groups begin")] = (
        "headrace-verify"
    ),
    settle: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the cluster may take to serve all again at the end")
    ] = 200.0,
    seed: Annotated[int | None, typer.Option(help="Of the choices of the load; else a new one")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report there: .json, else Markdown")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the topics there at the end")] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and change nothing")] = False,
) -> None:
    """
    Send, batch, read, copy and run transactions while you break parts of the cluster. Then repair it: everything is
    read and judged.

    The command creates its own topics and deletes them at the end; after an anomaly they stay. Ctrl+C ends the load
    early and judges what was recorded; a second Ctrl+C ends the command. Exit codes: 0 sound, 1 an anomaly, anything
    else: it could not be judged.
    """
    if find_spec("headrace_verify") is None:
        raise CommandFailed(
            "the load and the checker are not installed here", ExitCode.USAGE, "pip install 'headrace-cli[verify]'"
        )
    from headrace_verify.running import Run

    given = {"seconds": minutes * 60, "prefix": topics_prefix, "keys": keys, "rate": rate, "keep": keep}
    plan = _plan(session, **given, settle_s=settle, seed=secrets.randbelow(2**31) if seed is None else seed)
    if dry_run:
        session.show(plan.as_row())
        session.say("a plan, nothing was changed")
        return
    _check_writable(report)
    question = f"write to {session.bootstrap} for {minutes:g} minutes, to topics {plan.stem}*?"
    if not yes and sys.stdin.isatty() and not agreed(question):
        raise CommandFailed("nothing was done", ExitCode.USAGE, "Answer y, or give --yes.")
    session.say(f"verifying {session.bootstrap} for {minutes:g} minutes as {plan.stem}*: break what you like")
    hint("Ctrl+C ends the load and judges what it has so far.")
    stop, progress = threading.Event(), Progress(reads=False)
    with _first_interrupt_sets(stop), _failures_are_no_anomalies(plan):
        done = Run(plan, stop, lambda state: _tell(progress, state), _beside(report, plan)).run()
        progress.clear()
        _write(report, done)
    _show(session, done, report)
    if done.anomalies:
        raise typer.Exit(ExitCode.FAILED)
    if done.not_judged is not None:
        raise CommandFailed(
            f"the last round could not be judged: {done.not_judged}",
            ExitCode.TIMED_OUT,
            "`headrace cluster health` says what is missing; --settle gives it more time.",
        )


def _plan(session: Session, **given: Any) -> Plan:
    from headrace_verify.plan import Plan

    with session.admin() as admin:
        alive = sum(not broker.fenced for broker in admin.list_brokers())
    replicas = min(REPLICAS, alive)
    if not replicas:
        raise CommandFailed(
            "no broker is alive", ExitCode.UNREACHABLE, "`headrace cluster health` says what is missing."
        )
    in_sync = 2 if replicas == REPLICAS else 1
    if replicas < REPLICAS:
        session.say(
            f"note: {format_count(alive, 'broker')} alive, so {format_count(replicas, 'replica')} of each partition"
        )
    plan_id = secrets.token_hex(4)
    return Plan(session.cluster, plan_id, replicas=replicas, min_in_sync=in_sync, **given)


def _check_writable(report: Path | None) -> None:
    """Before hours of work, not after."""
    if report is not None:
        report.open("ab").close()


def _beside(report: Path | None, plan: Plan) -> Path:
    """Where the history of a round with an anomaly goes."""
    directory = Path() if report is None else report.parent
    return directory / f"{plan.prefix}-{plan.id}.history"


@contextmanager
def _first_interrupt_sets(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl+C sets ``stop``, the next is one as ever."""
    before = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        sys.stderr.write("\nthe load ends; what it has so far is judged next. Ctrl+C again skips that\n")

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _failures_are_no_anomalies(plan: Plan) -> Iterator[None]:
    """What would end with 1 ends with 7: it could not be judged."""
    try:
        yield
    except (HeadraceError, OSError) as error:
        code = exit_code_of(error) if isinstance(error, HeadraceError) else ExitCode.FAILED
        raise CommandFailed(
            f"it could not be judged: {error}",
            ExitCode.UNAVAILABLE if code is ExitCode.FAILED else code,
            f"`headrace cluster health` says what is missing; topics {plan.stem}* may still be there.",
        ) from error


def _tell(progress: Progress, state: State) -> None:
    if state.phase != "load" or progress.due():
        seen = f"round {state.round}, {state.seconds:,.0f} s of load, {state.events:,} operations and records"
        progress.tell_now(f"{state.phase}: {seen}, {state.errors:,} errors seen by clients")


def _write(file: Path | None, done: Report) -> None:
    import json

    if file is not None:
        as_json = file.suffix == ".json"
        file.write_text(json.dumps(done.as_json(), indent=1) + "\n" if as_json else done.as_markdown())


def _show(session: Session, done: Report, report: Path | None) -> None:
    if session.output is not Output.TABLE:
        session.show(done.as_json())
        return
    told = done.as_json()
    available = told["availability"]
    rows = {
        "verdict": told["verdict"],
        "rounds": done.rounds,
        "load_seconds": told["load_seconds"],
        "acknowledged": f"{done.acknowledged:,}",
        "without_an_answer": f"{done.unknown:,}",
        "read": f"{done.read:,}",
        "copied": f"{done.copied:,}",
        "transactions": dict(done.transactions),
        "errors_seen_by_clients": sum(done.errors.values()),
        "outages": len(done.outages) + done.outages_more,
        "longest_outage_s": available["longest_outage_s"],
    }
    session.show(rows)
    for name, found in told["anomalies"].items():
        session.say(f"{name} x {found['count']:,}: {'; '.join(found['examples'][:EXAMPLES])}")
    if done.kept_topics:
        session.say(f"topics that are still there: {', '.join(done.kept_topics)}")
    if done.history:
        session.say(f"history of the first round with an anomaly: {done.history}")
    if report is not None:
        session.say(f"report: {report}")
