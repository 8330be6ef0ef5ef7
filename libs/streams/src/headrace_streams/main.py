"""Runs an app in this process: makes the clients and the disks that a worker needs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from traceback import print_exception
from typing import TYPE_CHECKING, Any
from zlib import crc32

from headrace import aio
from headrace.aio.guarding import Guard
from headrace.ticket_types import AccessQuestion, TicketAudience
from headrace.work_types import Declaration
from headrace_common.core.errors import InvalidConfig, NetworkFailed
from headrace_common.core.ids import Endpoint
from headrace_common.core.worker_address import WorkerAddress
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.stopping import listen_for_signals
from headrace_common.runtime.threads import run_in_thread
from headrace_streams.adapters.headrace_io import SdkReader, SdkTopics, SdkWriters
from headrace_streams.adapters.rocksdb_store import RocksDbStores
from headrace_streams.config import EXACTLY_ONCE, ProcessingGuarantee, StreamsConfig
from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.app import App
from headrace_streams.ports import Membership, Snapshots, TaskStores
from headrace_streams.runtime.owned import Outside
from headrace_streams.runtime.stopping import before
from headrace_streams.runtime.worker import Worker

if TYPE_CHECKING:
    from headrace_common.runtime.health import HealthPort

_log = logging.getLogger("headrace.streams")


def run(app: App, **settings: Any) -> None:
    """
    Run an app until SIGTERM or SIGINT; what was read is committed then. A SIGINT behind that ends the process at once,
    with ``INTERRUPTED_TWICE``.

    Args:
        settings: of ``StreamsConfig``.

    Raises:
        RowFailed: a record cannot be processed, and ``on_error`` is "fail".
        FencedInstanceId: another process is this worker now.
    """
    asyncio.run(_run_until_signal(app, StreamsConfig.of(settings)))


async def _run_until_signal(app: App, config: StreamsConfig) -> None:
    stop = asyncio.Event()
    listen_for_signals(stop, _log, app.name, words_of_seen(config.processing_guarantee))
    await serve(app, config, stop)


def words_of_seen(guarantee: ProcessingGuarantee) -> str:
    """How often readers see what is done again."""
    if guarantee == EXACTLY_ONCE:
        return "readers with isolation_level='read_committed' see it once"
    return "rows may be written twice (at_least_once), and state is exact"


async def serve(app: App, config: StreamsConfig, stop: asyncio.Event) -> None:
    """Run a worker of an app in this event loop until ``stop`` is set; its state is on this machine's disk."""
    with ExitStack() as stack:
        stores = stack.enter_context(RocksDbStores(Path(config.state_dir), app.name))
        # One thread: a task is fed by one after the other, and the loop stays free for the clients.
        pool, looking = ThreadPoolExecutor(1, "headrace-streams"), ThreadPoolExecutor(1, "headrace-queries")
        for one in (pool, looking):
            stack.callback(one.shutdown, wait=False)  # a function that does not return must not hold this up
        # Whoever starts next with this directory is this worker, and puts out what may be left of it.
        here = f"{socket.gethostname()}-{crc32(str(stores.directory.resolve()).encode()):08x}"
        look = partial(_in_pool, looking)
        snapshots = None
        if config.snapshot_url is not None:
            from headrace_streams.adapters.snapshots import ArrowSnapshots

            snapshots = stack.enter_context(ArrowSnapshots(config.snapshot_url, app.name))
        compute = partial(_in_pool, pool)
        await work(app, config, stop, stores, compute, instance_id=here, look=look, snapshots=snapshots)


async def work(
    app: App,
    config: StreamsConfig,
    stop: asyncio.Event,
    stores: TaskStores,
    compute: Callable[..., Awaitable[Any]],
    *,
    instance_id: str,
    look: Callable[..., Awaitable[Any]] | None = None,
    snapshots: Snapshots | None = None,
) -> None:
    """
    Run a worker of an app on clients of its own; ``stores`` and ``compute`` as a worker takes them.

    Args:
        instance_id: names this worker for longer than its process.
        look: runs what only reads; None: as ``compute`` does.
        snapshots: where state is kept besides; None: nowhere.
    """
    clock = SystemClock()
    servers = config.bootstrap_servers

    async def join(declaration: Declaration, lags: Mapping[str, int]) -> Membership:
        group = aio.WorkGroup(
            app.name,
            declaration,
            servers,
            group_instance_id=instance_id,
            transactional_id_prefix=app.name,
            endpoint="" if asked_at is None else str(asked_at),
            zone=socket.gethostname() if config.zone is None else config.zone,
            default_api_timeout_ms=config.default_api_timeout_ms,
        )
        group.report(lags=lags)
        return await group.start()

    asked_at: WorkerAddress | None = None
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(aio.AdminClient(servers))
        outside = Outside(
            SdkTopics(admin, config, clock),
            SdkReader.of_group(servers, app.name),
            SdkReader.of_whole_logs(servers),
            SdkWriters(servers, config, clock),
            stores,
            join,
            clock,
            compute,
            look or compute,
            snapshots,
            SdkReader.of_whole_logs(servers) if app.graph.globals else None,
        )
        worker = Worker(app, config, outside)
        asked_at = await stack.enter_async_context(_observed(worker, config, clock, _let_in(app.name, admin, clock)))
        stack.push_async_callback(worker.close)
        if await before(stop, worker.assemble()):
            await worker.start()
            await worker.run(stop)


def _let_in(app: str, admin: aio.AdminClient, clock: Clock) -> Callable[[bytes, str, str], Awaitable[None]]:
    """Who may read the group of the app may ask for what it keeps."""
    guard, asked = Guard(admin, clock), (AccessQuestion("READ", "GROUP", app),)

    async def let_in(ticket: bytes, endpoint: str, store: str) -> None:
        await guard.check_ticket(ticket, TicketAudience(app, endpoint, store), asked)

    return let_in


@asynccontextmanager
async def _observed(
    worker: Worker, config: StreamsConfig, clock: Clock, let_in: Callable[[bytes, str, str], Awaitable[None]]
) -> AsyncIterator[WorkerAddress | None]:
    """
    Others see how it does and ask it, if the settings say where; gives the address for questions.

    Raises:
        NetworkFailed: an address is taken, as by an earlier worker that still ends, or not of this machine.
        InvalidConfig: packages are missing, or certificates cannot be used.
    """
    if config.metrics_listen is None and config.health_listen is None and config.query_listen is None:
        yield None
        return
    if find_spec("prometheus_client") is None or find_spec("grpc_health") is None:
        raise InvalidConfig(
            "metrics_listen, health_listen and query_listen need more packages: pip install 'headrace-streams[service]'"
        )
    from headrace_common.runtime.health import HealthPort
    from headrace_common.runtime.metrics import open_metrics
    from headrace_common.runtime.service import CannotListen, ServerConfig
    from headrace_common.runtime.service_tls import open_tls
    from headrace_common.runtime.tasks import TaskRunner
    from headrace_streams.adapters.grpc_queries import open_queries
    from headrace_streams.adapters.otel_figures import publish

    async with AsyncExitStack() as stack:
        try:
            metrics = stack.enter_context(open_metrics("streams", 0, _endpoint(config.metrics_listen)))
            health = ServerConfig(health_listen=_endpoint(config.health_listen))
            port = await stack.enter_async_context(HealthPort.open(health))
            asked_at = None
            if (listen := _endpoint(config.query_listen)) is not None:
                tasks = await stack.enter_async_context(TaskRunner())
                tls = await stack.enter_async_context(open_tls(config.query_tls, None, clock, metrics.meter, tasks))
                asked_at = await stack.enter_async_context(
                    open_queries(worker.queries, listen, config.advertise_host, let_in, tls)
                )
        except CannotListen as error:
            raise NetworkFailed(str(error)) from error
        publish(metrics, worker.figures, clock)
        settled = asyncio.create_task(_tell(worker.settled, port), name="health")
        try:
            yield asked_at
        finally:
            settled.cancel()
            await port.leaving()


def _endpoint(listen: Endpoint | str | None) -> Endpoint | None:
    assert not isinstance(listen, str), "the settings have made an endpoint of it"
    return listen


async def _tell(settled: asyncio.Event, port: HealthPort) -> None:
    await settled.wait()
    await port.reached()


async def _in_pool(pool: ThreadPoolExecutor, call: Any, *args: Any) -> Any:
    return await run_in_thread(_without_exits, call, *args, pool=pool)


def _without_exits(call: Any, *args: Any) -> Any:
    """
    In this process alone: one that a function of the program has forked ends where the function does.

    Raises:
        NotAllowed: a function wanted to end the process: it would end as if all were well.
    """
    here = os.getpid()
    try:
        result = call(*args)
    except BaseException as error:
        if os.getpid() != here:
            os._exit(_exit_code(error))
        if isinstance(error, Exception):
            raise
        at = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        raise NotAllowed(
            f"{at}a function of the program raised {error!r}, which would end the worker; "
            "raise an Exception, and on_error= says what becomes of the record"
        ) from error
    if os.getpid() != here:
        os._exit(0)
    return result


def _exit_code(error: BaseException) -> int:
    """As Python ends by it."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    print_exception(error)
    return 1
