"""``headrace streams``: programs that read topics, keep state and write topics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.child_environment import child_environment
from headrace_cli.commanding import command, pairs, read_text
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session, check_reachable

if TYPE_CHECKING:
    from headrace_streams.dsl.app import App
    from headrace_streams.plan.compare import Change
    from headrace_streams.upkeep import Reset

_STANDBYS = "Other workers that follow the state of each task; none if nothing is said"
_STATE = "Where state is kept on this machine; .headrace-streams if nothing is said"
_METRICS = "Where Prometheus finds metrics; the second worker has the next port"
_QUERIES = "Where workers answer questions about their state; the second worker has the next port"
_HEALTH = "Where grpc.health.v1 says live and ready; the second worker has the next port"
_DRAWING_S = 60
HELP = "Programs of headrace.streams: run, describe, change and reset them"

AppOrProgram = Annotated[
    str, typer.Argument(metavar="APP", help="The app's name, or its program: billing, billing.py, package.billing:app")
]
Program = Annotated[
    str, typer.Argument(help="A file or a module, with the app's name if it has several: billing.py:app")
]


class Picture(StrEnum):
    """What ``describe --as`` takes."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace streams``."""
    command(app)(run)
    command(app, needs_cluster=False)(describe)
    command(app, needs_cluster=False)(plan)
    command(app)(reset)
    command(app, "list")(list_)
    command(app)(tasks)
    command(app)(state)
    command(app)(explain)
    command(app)(spark)


def run(
    session: Session,
    program: Program,
    *,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=1_000, help="Processes on this machine")] = 1,
    standbys: Annotated[int | None, typer.Option(min=0, max=16, help=_STANDBYS)] = None,
    state_dir: Annotated[Path | None, typer.Option(metavar="DIR", help=_STATE)] = None,
    metrics_listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_METRICS)] = None,
    health_listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_HEALTH)] = None,
    commit_interval_ms: Annotated[int | None, typer.Option(help="How often to commit; 100 if nothing is said")] = None,
    query_listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_QUERIES)] = None,
    advertise_host: Annotated[str | None, typer.Option(help="Under which host others reach --query-listen")] = None,
) -> None:
    """
    Run a program until Ctrl+C or SIGTERM; then it commits what it has read. A worker that dies is started again.

    A second Ctrl+C ends it at once, with 130; the next start does again what was not committed.

    Start it as often as you like, on as many machines as you like: workers of the same app share its tasks. The
    environment gives further settings: HEADRACE_STREAMS_COMMIT_ROWS=5000 is commit_rows. Options win.
    """
    _check_installed()
    from headrace_streams.config import from_environment
    from headrace_streams.worker_process import Ending, Parent

    options: dict[str, Any] = {
        "bootstrap_servers": session.bootstrap,
        "state_dir": state_dir,
        "standbys": standbys,
        "commit_interval_ms": commit_interval_ms,
        "metrics_listen": metrics_listen,
        "health_listen": health_listen,
        "query_listen": query_listen,
        "advertise_host": advertise_host,
    }
    settings = from_environment(os.environ) | {name: given for name, given in options.items() if given is not None}
    match Parent(program, settings, workers, env=child_environment(session.cluster, os.environ)).run():
        case Ending.DONE:
            return
        case Ending.INTERRUPTED:
            raise typer.Exit(ExitCode.INTERRUPTED)
        case Ending.FENCED:
            raise CommandFailed(
                f"a worker of {program} was put out: another process has the name of this machine and state directory",
                ExitCode.FAILED,
                "Give machines names of their own, or this worker another --state-dir.",
            )
        case _:
            raise CommandFailed(
                f"{program} ended with an error", ExitCode.FAILED, "Its last line says what to change; nothing is lost."
            )


def spark(
    session: Session,
    program: Program,
    *,
    checkpoint: Annotated[str, typer.Option(metavar="DIR", help="Where it goes on: a directory all of Spark reaches")],
    available_now: Annotated[bool, typer.Option("--available-now", help="Do what is there, and end")] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs it")] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", "-c", metavar="KEY=VALUE", help="A setting of Spark, repeatable")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Spark's log as Spark is configured")] = False,
) -> None:
    """
    Run a program on Spark as one query, until Ctrl+C. What Spark would do otherwise is refused, all of it at once.

    It begins with the first record, and then goes on where the checkpoint is.
    """
    _check_installed()
    from headrace_cli.spark import submit
    from headrace_streams.program import load
    from headrace_streams.spark.subset import steps_of

    app = load(program)
    steps_of(app)
    here = submit.find_spark(os.environ)
    check_reachable(session.cluster)
    asked = submit.Program(
        file=submit.QUERY,
        arguments=[program, checkpoint, "available-now" if available_now else "always"],
        name=app.name,
        master=master,
        conf={"spark.sql.session.timeZone": "UTC", **_for_one_machine(master), **pairs(conf, "KEY=VALUE")},
        cluster=session.cluster,
        verbose=verbose,
    )
    session.say(f"{app.name} starts on Spark at {master}, and goes on where {checkpoint} says. Ctrl+C ends it.")
    code = submit.run(asked, here, os.environ)
    if code != ExitCode.OK:
        raise typer.Exit(code)


def _for_one_machine(master: str) -> dict[str, str]:
    """Spark's default, 200 tasks for each shuffle of each batch, is for many machines: here it takes minutes."""
    return {"spark.sql.shuffle.partitions": "4"} if master.startswith("local") else {}


def describe(
    session: Session,
    program: Program,
    *,
    as_: Annotated[Picture | None, typer.Option("--as", help="Which picture; svg needs Graphviz")] = None,
) -> None:
    """
    Print the topology: a picture, a Mermaid flow chart if nothing is said; or with -o its nodes.

    Nothing runs, and no cluster is asked.
    """
    _check_installed()
    from headrace_streams.plan.describe import as_data, as_dot, as_mermaid
    from headrace_streams.program import load

    if as_ is not None and session.output is not Output.TABLE:
        raise typer.BadParameter("give -o or --as: one prints data, the other a picture")
    app = load(program)
    if session.output is not Output.TABLE:
        session.show(as_data(app.name, app.graph))
    elif as_ is Picture.SVG:
        typer.echo(_svg(as_dot(app.name, app.graph)), nl=False)
    else:
        draw = as_dot if as_ is Picture.DOT else as_mermaid
        typer.echo(draw(app.name, app.graph), nl=False)


def _svg(dot: str) -> str:
    """
    Raises:
        CommandFailed: Graphviz is not here, or fails.
    """
    program = shutil.which("dot")
    if program is None:
        raise CommandFailed(
            "Graphviz draws svg, and its `dot` is not on the PATH",
            ExitCode.USAGE,
            "Install the package graphviz, or draw elsewhere what --as dot or --as mermaid print.",
        )
    drawn = subprocess.run([program, "-Tsvg"], input=dot.encode(), capture_output=True, timeout=_DRAWING_S, check=False)
    if drawn.returncode:
        said = drawn.stderr.decode(errors="replace").strip()
        raise CommandFailed(f"{program} failed: {said[:500]}", ExitCode.FAILED, "`--as dot` prints what it was given.")
    return drawn.stdout.decode()


def plan(
    session: Session,
    program: Program,
    *,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="A plan as `streams describe -o json` prints it; -: stdin"),
    ] = None,
) -> None:
    """
    Compare a program with what the cluster has of its app, or with another plan: what becomes of its state.

    Ends with 1 where the program would not start.
    """
    _check_installed()
    from headrace_streams.plan.compare import Fate
    from headrace_streams.program import load

    app = load(program)
    if against is not None:
        changes = _compared_with(app, against)
    else:
        from headrace_streams.upkeep import compared

        check_reachable(session.cluster)
        changes = compared(app, session.cluster)
    rows = [{"fate": change.fate.name.lower(), "what": change.what, "do": change.do or None} for change in changes]
    session.show_rows("changes", rows, "fate", "what", "do", empty=f"{app.name} is the same")
    worst = max((change.fate for change in changes), default=Fate.SAFE)
    if worst is not Fate.SAFE:
        raise CommandFailed(f"{app.name} would not start on what is there", ExitCode.FAILED, f"{rows[0]['do']}.")


def _compared_with(app: App, path: Path) -> list[Change]:
    from headrace_streams.plan.compare import compare
    from headrace_streams.plan.describe import as_data

    wrong = CommandFailed(
        f"{path} is not a plan of {app.name}",
        ExitCode.USAGE,
        "`headrace streams describe PROGRAM -o json` prints one, of a program before it is changed.",
    )
    try:
        old = json.loads(read_text(str(path), "a plan"))
        if old["app"] != app.name:
            raise wrong
        return compare(old, as_data(app.name, app.graph))
    except (ValueError, TypeError, KeyError) as error:
        raise wrong from error


def reset(
    session: Session,
    app: AppOrProgram,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest (the default), latest, or a time: 2026-11-21T10:00:00Z, ms since 1970",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="CSV topic,partition,offset; elsewhere earliest; -: stdin"),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="NAME", help="Only this state; positions stay")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only show the plan")] = False,
) -> None:
    """
    Plan how an app begins anew: without state, at the first record or elsewhere; --execute does it.

    Its internal topics are deleted, with the state in them, and its positions are forgotten or set. No worker may run.
    """
    _check_installed()
    from headrace_streams.upkeep import reset as carry_out

    if (to is not None) + (from_file is not None) + (store is not None) > 1:
        raise typer.BadParameter("give one of --to, --from-file and --store")
    check_reachable(session.cluster)
    asked = _reset_of(app, to, from_file, store, execute)
    done = carry_out(asked, session.cluster)
    columns = ["step", "topic", "partition", "old_offset", "new_offset"]
    if session.output is Output.TABLE:
        session.show(done.steps, *(columns if store is None else columns[:3]), empty="it has read nothing")
    else:
        session.show({"app": asked.app, "executed": execute, "steps": done.steps, "left_alone": list(done.foreign)})
    for topic in done.foreign:
        session.say(f"left alone, as it may be somebody else's: {topic}")
    what = asked.app if store is None else f"the state {store!r} of {asked.app}"
    if execute:
        session.say(f"{what} begins anew")
        return
    runs = f"; it has {format_count(done.members, 'worker')}: stop them first" if done.members else ""
    session.say(f"a plan for {what}, nothing was changed; --execute carries it out{runs}")


def _reset_of(app: str, to: str | None, from_file: Path | None, store: str | None, execute: bool) -> Reset:
    from headrace.records import TopicPartition
    from headrace_streams.upkeep import Reset

    name, program = _named(app)
    where: Any = to or "earliest"
    if from_file is not None:
        from headrace_cli.commands.group import offsets_from

        where = {TopicPartition(*at): offset for at, offset in offsets_from(from_file, name).items()}
    return Reset(name, program, where, store or "", execute)


def _named(app: str) -> tuple[str, App | None]:
    """An app by its name, or the one of a program."""
    if not app.endswith(".py") and ":" not in app:
        return app, None
    from headrace_streams.program import load

    program = load(app)
    return program.name, program


def list_(session: Session) -> None:
    """List the apps: those that have state or repartition topics, and others once they have committed something."""
    _check_installed()
    from headrace_streams.upkeep import apps

    check_reachable(session.cluster)
    session.show_rows("apps", apps(session.cluster), empty="there are no apps")


def tasks(session: Session, app: AppOrProgram) -> None:
    """Show what each task of an app reads, how far it is, and which member of the group runs it."""
    _check_installed()
    from headrace_streams.upkeep import tasks as ask

    check_reachable(session.cluster)
    rows = ask(*_named(app), session.cluster)
    session.show_rows("tasks", rows, empty="it has committed nothing")
    if session.output is Output.TABLE and rows:
        behind = sum(row["lag"] for row in rows if isinstance(row["lag"], int))
        session.say(f"{format_count(behind, 'record')} behind in all")


def state(
    session: Session,
    app: Annotated[str, typer.Argument(help="The name of a running app")],
    store: Annotated[str | None, typer.Argument(help="One of its stores; without it their names are told")] = None,
    key: Annotated[list[str] | None, typer.Argument(help="Columns of a key; without it all")] = None,
) -> None:
    """
    Show what a running app has kept, as of its last commits. Its workers need --query-listen.
    """
    _check_installed()
    from headrace_streams import Stores

    with Stores(app, session.cluster) as stores:
        if store is None:
            session.show_rows("stores", [{"name": name} for name in stores.names()])
        elif key:
            session.show_rows("rows", stores[store].rows_of_texts(*key))
        else:
            session.show_rows("rows", stores[store].table().to_pylist())


def explain(
    session: Session,
    app: Annotated[str, typer.Argument(help="The app's name")],
    key: Annotated[list[str], typer.Argument(help="Columns of a key")],
    *,
    store: Annotated[str | None, typer.Option("--store", metavar="NAME", help="Only this one of its stores")] = None,
) -> None:
    """
    Explain where a key is: its task in each store, which worker has that, how far it is, and what is kept.

    Rows are shown if workers run with --query-listen.
    """
    _check_installed()
    from headrace_streams.explaining import explain as ask

    check_reachable(session.cluster)
    found = ask(app, key, store, session.cluster)
    if session.output is not Output.TABLE:
        session.show({"app": app, "columns": key, "stores": found})
        return
    for place, one in enumerate(found):
        if place:
            typer.echo()
        session.show(one)
    if not found:
        session.say(f"{app} keeps no state")


def _check_installed() -> None:
    if find_spec("headrace_streams") is None:
        raise CommandFailed(
            "stream processing is not installed here", ExitCode.USAGE, "pip install 'headrace-cli[streams]'"
        )
