"""``headrace job``: the Spark jobs that are installed, run with the Spark of this machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

from headrace.finding import bootstrap_addresses
from headrace_cli.commanding import command, pairs, plain_command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session, check_reachable
from headrace_cli.spark import jobs, submit

HELP: Final = "Spark jobs over topics"
_ASKS_FOR_HELP: Final = frozenset({"-h", "--help"})


def register(app: typer.Typer) -> None:
    """Add the commands."""
    plain_command(app, "list")(list_jobs)
    command(app, "run")(run_job)


def list_jobs(session: Session) -> None:
    """The jobs that are installed."""
    rows = [{"job": j.name, "does": j.summary, "package": j.package} for j in jobs.list_jobs().values()]
    session.show_rows("jobs", rows, "job", "does", "package", empty=f"no job is installed; {jobs.GET_THEM}")


def run_job(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `headrace job list`")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="The job's own options; -- --help shows them")
    ] = None,
    *,
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs it")] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", "-c", metavar="KEY=VALUE", help="A setting of Spark, repeatable")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Spark's log as Spark is configured")] = False,
) -> None:
    """
    Run a Spark job to its end; its exit code is the command's.

    The job gets the cluster's address, CA and API key, unless its own options name a cluster.
    """
    job = jobs.find_job(name, jobs.list_jobs())
    settings = pairs(conf, "KEY=VALUE")
    given = arguments or []
    if _ASKS_FOR_HELP & set(given):
        _help(job, given)
        return
    spark = submit.find_spark(os.environ)
    names_its_own = any("bootstrap" in argument for argument in given)
    if not names_its_own:
        check_reachable(session.cluster)
        if session.cluster.cluster_id is not None:
            with session.admin() as admin:
                admin.describe_cluster()  # the environment of the job cannot tell whose address it is
    program = submit.Program(
        file=submit.ENTRY,
        arguments=[job.name, *given],
        name=f"headrace-{job.name}",
        master=master,
        conf=settings,
        # What a profile shows is for its own cluster.
        cluster=bootstrap_addresses(session.bootstrap) if names_its_own else session.cluster,
        verbose=verbose,
    )
    code = submit.run(program, spark, os.environ)
    if code != ExitCode.OK:
        raise typer.Exit(code)


def _help(job: jobs.Job, arguments: list[str]) -> None:
    """A job tells its options here: it needs no Java for that."""
    try:
        main = job.entry.load()
    except ModuleNotFoundError as error:
        raise CommandFailed(f"job {job.name} cannot be loaded: {error}", hint=submit.GET_SPARK) from None
    sys.argv = [f"headrace job run {job.name} --", *arguments]
    main(arguments)
