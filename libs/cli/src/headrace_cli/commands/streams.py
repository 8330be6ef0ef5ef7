"""``headrace streams``: programs that read topics, keep state and write topics."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session

HELP = "Programs of headrace.streams: run them, describe them"

_STANDBYS = "Other workers that follow the state of each task; none if nothing is said"
_STATE = "Where state is kept on this machine; .headrace-streams if nothing is said"
_METRICS = "Where Prometheus finds metrics; the second worker has the next port"
_QUERIES = "Where workers answer questions about their state; the second worker has the next port"
_HEALTH = "Where grpc.health.v1 says live and ready; the second worker has the next port"
Program = Annotated[
    str, typer.Argument(help="A file or a module, with the app's name if it has several: billing.py:app")
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace streams``."""
    command(app)(run)
    command(app)(describe)


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
    match Parent(program, settings, workers).run():
        case Ending.DONE:
            return
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


def describe(session: Session, program: Program) -> None:
    """Print the topology: a Mermaid flow chart, or with -o its nodes. Nothing runs, and no cluster is asked."""
    _check_installed()
    from headrace_streams.plan.describe import as_data
    from headrace_streams.program import load

    app = load(program)
    if session.output is Output.TABLE:
        typer.echo(app.describe(), nl=False)
    else:
        session.show(as_data(app.name, app.graph))


def _check_installed() -> None:
    if find_spec("headrace_streams") is None:
        raise CommandFailed(
            "stream processing is not installed here", ExitCode.USAGE, "pip install 'headrace-cli[streams]'"
        )
