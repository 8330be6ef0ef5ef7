"""``headrace up``, ``down`` and ``status``: the cluster on this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.finding import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, ClusterAddress
from headrace_cli.commanding import pairs, plain_command
from headrace_cli.exits import CommandFailed, ExitCode, exit_code_of_state
from headrace_cli.interrupts import interruptible
from headrace_cli.output import Output, bytes_for_people, format_count
from headrace_cli.session import DEFAULT_DATA_DIR, Session
from headrace_cli.terminal import visible
from headrace_common.core.errors import Denied, Rejected, Unauthenticated

if TYPE_CHECKING:
    from headrace_cli.local import LocalCluster
    from headrace_cli.local.plan import ClusterOptions
    from headrace_cli.local.state import ClusterState

FOLLOW_SECONDS = 0.2
ASK_SECONDS = 5.0

DataDirOption = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", help="Where its data are; a cluster is known by this directory")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    plain_command(app)(up)
    plain_command(app)(down)
    plain_command(app)(status)


def up(
    session: Session,
    *,
    brokers: Annotated[
        int | None, typer.Option(min=1, max=64, help="3 unless the directory has another number")
    ] = None,
    controllers: Annotated[int | None, typer.Option(min=1, max=64, help="1 unless ...")] = None,
    coordinators: Annotated[int | None, typer.Option(min=0, max=64, help="1 unless ...; 0: no consumer groups")] = None,
    connect: Annotated[
        bool | None, typer.Option("--connect/--no-connect", help="A Connect worker too; none unless ...")
    ] = None,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="TLS on all listeners; none unless ...")] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open",
            help="Refuse who shows no key; your programs find it. A new one is closed; it never opens again",
        ),
    ] = None,
    data_dir: DataDirOption = Path(DEFAULT_DATA_DIR),
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready and leave it running")
    ] = False,
    flush: Annotated[
        str | None,
        typer.Option(metavar="group|always|os", help="When appends reach the disk before they are acknowledged"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of brokers; connect.KEY of the worker; repeatable"),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart/--no-restart", help="Restart processes that die")] = True,
    restart_delay_ms: Annotated[int, typer.Option(min=0, max=60_000, help="Delay before a restart")] = 500,
    etcd: Annotated[str | None, typer.Option(metavar="PATH", help="An etcd to use instead of the bundled one")] = None,
    etcd_members: Annotated[int | None, typer.Option(min=1, max=7, help="3 for tests of a quorum")] = None,
    port: Annotated[
        list[str] | None,
        typer.Option("--port", metavar="NAME=PORT", help="A fixed port, as broker-1=9292 or admin-1.http=8080"),
    ] = None,
    racks: Annotated[
        str | None, typer.Option("--racks", metavar="A,B,...", help="Racks of the brokers, to try placement")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="How long it may take to get ready, in seconds")] = 60.0,
) -> None:
    """Start a cluster on this machine: etcd, controller, brokers, coordinator and admin, each a process of its own."""
    from headrace_cli.local import LocalCluster
    from headrace_cli.local.installed import require_local
    from headrace_cli.local.state import DataDir
    from headrace_common.runtime.private_files import keep_private

    keep_private()
    before = DataDir.at(data_dir).read()
    saved = before.options if before is not None else None
    connects = connect if connect is not None else saved is not None and saved.connect
    require_local("up", etcd=etcd, services=("connect-worker",) if connects else ())
    cluster = LocalCluster(
        data_dir,
        brokers=brokers or (saved.brokers if saved else 3),
        controllers=controllers or (saved.controllers if saved else 1),
        coordinators=coordinators if coordinators is not None else saved.coordinators if saved else 1,
        etcd_members=etcd_members or (saved.etcd_members if saved else 1),
        connect=connects,
        tls=tls if tls is not None else saved is not None and saved.tls,
        closed=closed,
        flush=flush or (saved.flush if saved else "group"),
        restart=restart,
        restart_delay_ms=restart_delay_ms,
        settings=pairs(setting, "--set KEY=VALUE"),
        ports=_ports(port),
        racks=racks.split(",") if racks else (saved.racks if saved else ()),
        etcd=etcd,
        detach=detach,
    )
    with interruptible(signal.SIGTERM):
        _run(session, cluster, timeout, detach=detach)


def down(session: Session, data_dir: DataDirOption = Path(DEFAULT_DATA_DIR)) -> None:
    """Stop the cluster on this machine; its data are kept."""
    from headrace_cli.local import LocalCluster, NotRunning

    try:
        cluster = LocalCluster.attach(data_dir)
    except NotRunning:
        session.report({"data_dir": str(data_dir), "stopped": False}, f"no cluster runs on {data_dir}")
        return
    cluster.stop()
    kept_in = cluster.directory.path
    session.report({"data_dir": str(kept_in), "stopped": True}, f"stopped; data are kept in {kept_in}")


def status(session: Session, data_dir: DataDirOption = Path(DEFAULT_DATA_DIR)) -> None:
    """The cluster on this machine: its processes, and how it is in one line; ends as `cluster health` does."""
    from headrace_cli.local.state import DataDir

    directory = DataDir.at(data_dir)
    state = directory.read()
    if state is None:
        raise CommandFailed(
            f"no cluster was ever started on {directory.path}", ExitCode.NOT_FOUND, "`headrace up` starts one."
        )
    running = directory.locked()
    stopped = "stopped" if state.phase in {"stopped", "failed"} else "not running: its supervisor was killed"
    original = directory.find_original(state)
    if original is not None:
        stopped = f"not running: the directory was copied or moved from {original}"
    called, verdict = _verdict(state) if running else ("unavailable", f"{stopped}; `headrace up` starts it")
    processes = [_process_row(p) for p in state.processes]
    if session.output is Output.TABLE:
        if processes:
            columns = ("name", "state", "pid", "grpc", "http", "metrics", "restarts", "memory", "cpu_seconds")
            session.show(processes, *columns)
            typer.echo(f"bootstrap: {','.join(state.bootstrap_servers)}\nREST: {state.admin_url}")
            if state.connect_url is not None:
                typer.echo(f"Connect: {state.connect_url}")
        typer.echo(f"verdict: {visible(verdict)}")
    else:
        session.show(
            {
                "data_dir": str(directory.path),
                "running": running,
                "state": called,
                "healthy": called == "healthy",
                "verdict": verdict,
                "bootstrap_servers": state.bootstrap_servers,
                "admin_url": state.admin_url,
                "connect_url": state.connect_url,
                "processes": processes,
            }
        )
    if called != "healthy":
        raise typer.Exit(exit_code_of_state(called))


def _run(session: Session, cluster: LocalCluster, timeout: float, *, detach: bool) -> None:
    """Start it, say where it is, and stay with it unless it is to be detached."""
    if cluster.directory.locked():
        session.say(f"a cluster runs on {cluster.directory.path} already; `headrace down` stops it")
        _show_cluster(session, cluster)
        return
    session.say(what_starts(cluster.options.brokers, cluster.directory.path))
    begun = time.monotonic()
    try:
        cluster.start(timeout)
        session.say(f"ready after {time.monotonic() - begun:.1f} s")
        _show_cluster(session, cluster)
        if detach:
            session.say("it runs in the background; `headrace status` shows it, `headrace down` stops it")
            return
        session.say("Ctrl+C stops it")
        _follow(session, cluster)
    except KeyboardInterrupt:
        session.say("stopping ...")
        cluster.stop()
        session.say(f"stopped; data are kept in {cluster.directory.path}")


def _ports(texts: list[str] | None) -> dict[str, int]:
    given = pairs(texts, "--port NAME=PORT")
    wrong = [f"{name}={value}" for name, value in given.items() if not value.isdigit()]
    if wrong:
        raise typer.BadParameter(f"{', '.join(wrong)}: a port is a number, as in broker-1=9292")
    return {name: int(value) for name, value in given.items()}


def _show_cluster(session: Session, cluster: LocalCluster) -> None:
    from headrace_cli.local.state import public

    state = cluster.state
    if session.output is not Output.TABLE:
        session.show(public(state))
        return
    session.show([_process_row(p) for p in state.processes], "name", "state", "pid", "grpc", "http", "metrics")
    bootstrap = ",".join(state.bootstrap_servers)
    session.say(f"bootstrap: {bootstrap}")
    session.say(f"REST:      {state.admin_url}   (its documentation: {state.admin_url}/docs)")
    if state.connect_url is not None:
        session.say(f"Connect:   {state.connect_url}   (`headrace connect apply FILE` creates a connector)")
    for line in who_may(state.options, cluster.directory.authorization_file, state.admin_url or "", state.ca):
        session.say(line)
    session.say(f"logs:      {cluster.directory.logs}")
    for line in how_to_find(state.bootstrap_servers, cluster.directory.path, Path.cwd()):
        session.say(line)


def what_starts(brokers: int, directory: Path) -> str:
    """The first line, before anything is there."""
    return f"starting {format_count(brokers, 'broker')} on {directory} ..."


def who_may(options: ClusterOptions, authorization: Path, rest: str, ca: str | None = None) -> list[str]:
    """Whom the cluster takes, and how to change that. Pure."""
    if options.closed:
        trusting = f"--cacert {ca} " if ca else ""
        return [
            "access:    closed: your programs and commands find its key; `headrace access` gives others rights",
            f"           REST needs it too: curl {trusting}-H @{authorization} {rest}/v1/topics",
        ]
    return [
        "WARNING:   open: whoever reaches its ports, as every user of this machine does, may do everything; "
        "`headrace up --closed` closes it, for good"
    ]


def how_to_find(servers: list[str], data_dir: Path, here: Path) -> list[str]:
    """What to do so that clients find the cluster, where they do not by themselves. Pure."""
    if DEFAULT_BOOTSTRAP in servers:
        return []
    found = data_dir == here / DEFAULT_DATA_DIR
    where = f"programs that run in {here} find it; elsewhere" if found else "so that programs find it"
    return [
        f"note:      broker-1 listens on {servers[0]}: {DEFAULT_BOOTSTRAP}, where clients look last, may be another "
        "cluster's",
        f"           {where}: export {BOOTSTRAP_VARIABLE}={','.join(servers)}",
    ]


def _follow(session: Session, cluster: LocalCluster) -> None:
    """Tell what the supervisor does until it ends."""
    from headrace_cli.local.events import EventTail

    tail = EventTail(cluster.directory.events)
    while cluster.running() or cluster.revive():
        time.sleep(FOLLOW_SECONDS)
        for event in tail.new():
            if event.kind in {"died", "ready", "gave up", "failed"}:
                session.say(event.text)
    session.say("the cluster was stopped")


def _process_row(process: Any) -> dict[str, Any]:
    alive = process.alive()
    row = {
        "name": process.name,
        "role": process.role,
        "state": str(process.health) if alive or process.pid is None else "dead",
        "pid": process.pid,
        "grpc": process.grpc,
        "http": process.http,
        "metrics": process.metrics,
        "restarts": process.restarts,
        "note": process.note,
    }
    if alive:
        row |= _usage(process.pid)
    return row


def _usage(pid: int) -> dict[str, Any]:
    try:
        import psutil
    except ModuleNotFoundError:  # without the extra `local` the figures are left out
        return {}
    try:
        process = psutil.Process(pid)
        memory, times = process.memory_info().rss, process.cpu_times()
    except psutil.Error:
        return {}
    return {
        "memory": bytes_for_people(memory),
        "memory_bytes": memory,
        "cpu_seconds": round(times.user + times.system, 2),
    }


def _verdict(state: ClusterState) -> tuple[str, str]:
    """What the cluster says of itself, then which processes are missing."""
    missing = [p for p in state.processes if not p.alive() or p.health != "ready"]
    said = ", ".join(f"{p.name} is {p.health if p.alive() else 'dead'}" for p in missing)
    admins = [p.grpc for p in state.processes if p.role == "admin" and p.alive()]
    why = None
    try:
        found = _ask_status(ClusterAddress(tuple(admins), "the local cluster", ca=state.ca))
    except Rejected as error:
        found, why = None, str(error)
    if found is None:
        return judge_processes([p.role for p in state.processes], [p.role for p in missing], said, why)
    called, verdict = found["state"], found["verdict"]
    if missing and called == "healthy":
        return "degraded", f"degraded: {said}; nothing is lost; it is started again by itself, or see its log"
    return called, f"{verdict} ({said})" if missing else verdict


def _ask_status(admins: ClusterAddress) -> dict[str, Any] | None:
    """
    The status from the first admin service that tells it; None: none does. Brokers may be away, so none is asked.

    Raises:
        Unauthenticated, Denied: it does not tell it to who asks.
    """
    import grpc

    from headrace.securing import security_of
    from headrace_common.rpc import answers
    from headrace_common.rpc.channels import open_sync_channel
    from headrace_common.rpc.status import error_from_rpc
    from headrace_proto.v1 import admin_pb2, admin_pb2_grpc

    for address in admins:
        with open_sync_channel(address, security_of(admins)) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            try:
                return answers.status(stub.DescribeStatus(admin_pb2.DescribeStatusRequest(), timeout=ASK_SECONDS))
            except grpc.RpcError as error:
                failed = error_from_rpc(error)
                if isinstance(failed, Unauthenticated | Denied):
                    raise failed from error
                continue
    return None


def judge_processes(roles: list[str], missing: list[str], said: str, refused: str | None = None) -> tuple[str, str]:
    """
    The state and the verdict where the cluster does not tell: by its processes. Pure.

    Args:
        said: which are missing.
        refused: why it does not tell who asks; None: it cannot be asked.
    """
    if refused is not None and not missing:
        return "unknown", f"unknown: all {len(roles)} processes run; how the cluster is it does not tell you: {refused}"
    brokers_left = roles.count("broker") - missing.count("broker")
    called = "degraded" if brokers_left else "unavailable"
    told = "; ".join(filter(None, (said, refused))) or "no admin service answers"
    return called, f"{called}: the cluster cannot be asked, {brokers_left} brokers run; {told}; look into their logs"
