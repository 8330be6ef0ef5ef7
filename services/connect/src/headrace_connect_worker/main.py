"""The composition root: opens what the worker needs, serves REST, joins the work group, and leaves it again."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from headrace import aio
from headrace_common.core.errors import Denied, HeadraceError
from headrace_common.http.foreign_pages import Hosts as Names
from headrace_common.http.protocol import HttpBounds
from headrace_common.http.server import HttpServer
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.logs import configure_logs, logger
from headrace_common.runtime.metrics import Metrics, open_metrics
from headrace_common.runtime.service import Ready, announce_ready, run_until
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters import figures
from headrace_connect_worker.adapters.config_log import SdkConfigLog
from headrace_connect_worker.adapters.event_log import SdkEventLog
from headrace_connect_worker.adapters.guarded import SdkCallers
from headrace_connect_worker.adapters.host_processes import HostProcesses
from headrace_connect_worker.adapters.http_forwarding import HttpForwarding
from headrace_connect_worker.adapters.offset_log import SdkOffsets
from headrace_connect_worker.adapters.status_log import SdkStatusLog
from headrace_connect_worker.adapters.work_group import SdkMembership
from headrace_connect_worker.config import ConnectConfig
from headrace_connect_worker.core.figures import Figures
from headrace_connect_worker.engine.checking import Checking
from headrace_connect_worker.engine.leading import LeadingLimits
from headrace_connect_worker.engine.loggers import Loggers
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.verifying import Verifying
from headrace_connect_worker.engine.worker import ConnectWorker, Outside
from headrace_connect_worker.ports import Callers
from headrace_connect_worker.rpc.answering import refuse_connection
from headrace_connect_worker.rpc.forwarding import AtLeader
from headrace_connect_worker.rpc.rest import rest_app
from headrace_connect_worker.rpc.workers import About, Worker

VERSION: Final = "0.1.0"
FORWARD_MS: Final = 5_000
"""Longer than the leader may take, so that its answer comes."""
HEAD_MS_MAX: Final = 5_000
BODY_MS_MAX: Final = 30_000
CLUSTER_PAUSE_MS: Final = 10_000.0
_log = logger(__name__)


@dataclass(slots=True)
class _Cluster:
    """The cluster of brokers, once it has said who it is."""

    id: str | None = None

    async def learn(self, admin: aio.AdminClient, clock: Clock) -> None:
        """Ask until it says so, or that this worker may not ask; nothing waits for it."""
        while self.id is None:
            try:
                self.id = (await admin.describe_cluster()).cluster_id
            except Denied as error:
                _log.info("the cluster's id stays unknown: %s", error)
                break
            except HeadraceError as error:
                _log.info("the cluster's id is not known yet: %s", error)
                await clock.sleep_ms(CLUSTER_PAUSE_MS)


async def serve(config: ConnectConfig, stop: asyncio.Event) -> None:
    """Run one worker, which has this process for itself, until ``stop`` is set."""
    configure_logs("connect", 0, config.log_level)
    await run(config, stop)


async def run(config: ConnectConfig, stop: asyncio.Event) -> None:
    """Run one worker until ``stop`` is set; resources close in reverse order of opening."""
    clock, server, place, cluster = SystemClock(), config.server, Place(), _Cluster()
    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(HealthPort.open(server))
        metrics = stack.enter_context(open_metrics("connect", 0, server.metrics_listen))
        admin = await stack.enter_async_context(
            aio.AdminClient(config.bootstrap_servers, default_api_timeout_ms=config.call_ms_max)
        )
        hosts = await stack.enter_async_context(HostProcesses.of(config, clock))
        hosts.warm()
        outside = _outside(config, place, admin, hosts, clock, stack)
        limits = LeadingLimits(config.commands_max, config.command_ms_max)
        worker = ConnectWorker(outside, place, limits)
        figures.publish(metrics, Figures(hosts.figures, lambda: worker.reporting.statuses, lambda: worker.leads))
        tasks = await stack.enter_async_context(TaskRunner())
        tls = await stack.enter_async_context(open_tls(config.tls, None, clock, metrics.meter, tasks))
        checking = Checking(hosts, config.reach.policy)
        verifying = Verifying(worker.herd, hosts, checking, place, tasks, clock)
        parts = Worker(
            worker.herd,
            checking,
            verifying,
            await _open_leading(config, worker, place, tls, stack),
            Loggers(clock),
            About(VERSION, "", lambda: cluster.id),
        )
        callers = SdkCallers(admin, config.group_id, lambda: place.worker_id, clock)
        http = await _open_rest(config, parts, callers, metrics, tasks, tls, stack)
        endpoint = server.choose_endpoint(http.endpoint.port, listen_host=config.http_listen.host)
        place.worker_id, place.url = str(endpoint), f"{http.scheme}://{endpoint}"
        worker.begin(tasks)
        tasks.start(cluster.learn(admin, clock), name="cluster id")
        ready = Ready(
            f"connect-{endpoint.port}",
            http=endpoint,
            metrics=server.reachable(metrics.endpoint),
            health=health.endpoint,
        )
        tasks.start(_say_ready(worker, health, ready, config), name="ready")
        await run_until(stop, tasks)
        await health.leaving()
        await verifying.stop()
        await worker.leave(config.processes.task_stop_ms_max)


async def _say_ready(worker: ConnectWorker, health: HealthPort, ready: Ready, config: ConnectConfig) -> None:
    await worker.ready()
    await health.reached()
    announce_ready(ready, config.ready_file)


def _outside(
    config: ConnectConfig,
    place: Place,
    admin: aio.AdminClient,
    hosts: HostProcesses,
    clock: Clock,
    stack: AsyncExitStack,
) -> Outside:
    """All of it over the SDK; ``stack`` closes it."""
    servers, group, call_ms, names = config.bootstrap_servers, config.group_id, config.call_ms_max, config.topics
    topics = SdkTopics(admin, clock)
    configs = SdkConfigLog(servers, names.config_storage_topic, group, topics, clock, call_ms)
    statuses = SdkStatusLog(
        servers, names.status_storage_topic, names.status_storage_partitions, topics, clock, call_ms
    )
    offsets = SdkOffsets(
        servers, names.offset_storage_topic, names.offset_storage_partitions, group, topics, admin, clock, call_ms
    )
    events = SdkEventLog(servers, names.event_storage_topic, group, topics, clock, call_ms)
    membership = SdkMembership(servers, group, lambda: place.worker_id, clock, call_ms)
    for port in (configs, statuses, events, offsets, membership):
        stack.push_async_callback(port.close)
    return Outside(configs, statuses, events, offsets, membership, hosts, clock)


async def _open_leading(
    config: ConnectConfig, worker: ConnectWorker, place: Place, tls: ServiceTls | None, stack: AsyncExitStack
) -> AtLeader:
    forwarding = await stack.enter_async_context(HttpForwarding.open(config.answer_ms_max + FORWARD_MS, tls))
    return AtLeader(worker.herd, forwarding, lambda: place.url)


async def _open_rest(
    config: ConnectConfig,
    parts: Worker,
    callers: Callers,
    metrics: Metrics,
    tasks: TaskRunner,
    tls: ServiceTls | None,
    stack: AsyncExitStack,
) -> HttpServer:
    own = [socket.gethostname(), config.advertise_host, config.http_listen.host]
    app = rest_app(
        parts, callers, hosts=Names.of([*(name for name in own if name), *config.hosts]), meter=metrics.meter
    )
    bounds = HttpBounds(
        connections_max=config.http_connections_max,
        connections_per_address_max=config.http_connections_per_address_max,
        head_ms_max=HEAD_MS_MAX,
        body_ms_max=BODY_MS_MAX,
        refusal=refuse_connection,
    )
    return await stack.enter_async_context(
        HttpServer.open(app, config.http_listen, tasks, bounds, drain_ms_max=config.drain_ms_max, tls=tls)
    )
