"""Composition root: opens adapters, runs the program, writes etcd's configuration; the exit code says how it went."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.logs import configure_logs
from headrace_common.runtime.tls_config import TlsFiles
from headrace_common.runtime.tls_contexts import make_mutual_context
from headrace_controller.etcd_member.adapters.http_rendezvous import Doorplate, HttpLookout
from headrace_controller.etcd_member.adapters.member_volume import MemberVolume, write_whole
from headrace_controller.etcd_member.config import EtcdMemberConfig
from headrace_controller.etcd_member.core.etcd_file import Addresses, Founding, MemberTls, render, settings
from headrace_controller.etcd_member.core.rendezvous import Site
from headrace_controller.etcd_member.ports import ClusterUnusable, RunningCluster
from headrace_controller.etcd_member.program import EtcdMember, World, WrongVolume

SETTLE_MS: Final = 1_500
"""Pods that start together have their names within so long. A name that is asked for before it is there is not there
for the next 5 to 30 s either, to nobody: DNS servers keep that answer."""

_INTERRUPTED: Final = 143

_log = logging.getLogger(__name__)


def run(config: EtcdMemberConfig) -> int:
    """0: the configuration is written, start etcd. 1: it cannot be; the log says why. 143: told to stop."""
    ordinal = config.name.rpartition("-")[2]
    configure_logs("etcd-member", int(ordinal) if ordinal.isdecimal() else 0, config.log_level)
    try:
        return asyncio.run(_write_config(config))
    except (WrongVolume, InvalidConfig, OSError) as error:
        _log.critical("etcd cannot be started: %s", error)
        return 1


async def _write_config(config: EtcdMemberConfig) -> int:
    """The first process of a container gets no default action for a signal, so it must leave by itself."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os._exit, _INTERRUPTED)  # everything worth keeping is on disk already
    founding = await _decide(config)
    write_whole(config.config_out, render(etcd_settings(config, founding)).encode())
    return 0


@asynccontextmanager
async def _cluster_at(client_urls: Sequence[str], tls: TlsFiles | None) -> AsyncIterator[RunningCluster]:
    """With the certificates as they are now."""
    from headrace_controller.adapters.etcd_channels import read_pem  # gRPC: 0.2 s, and rarely needed
    from headrace_controller.etcd_member.adapters.etcd_cluster import EtcdCluster

    try:
        pem = None if tls is None else read_pem(tls.ca, tls.cert, tls.key)
    except InvalidConfig as error:
        raise ClusterUnusable(str(error)) from error
    async with EtcdCluster.open(client_urls, pem) as cluster:
        yield cluster


async def _decide(config: EtcdMemberConfig) -> Founding:
    clock, tls = SystemClock(), config.tls
    if tls is not None:
        make_mutual_context(tls, ssl.Purpose.CLIENT_AUTH)  # etcd would end with less to read
    world = World(
        volume=MemberVolume(config.data_dir, config.facts_file),
        lookout=HttpLookout(config.cluster, tls),
        clock=clock,
        cluster_at=lambda urls: _cluster_at(urls, tls),
        new_volume_id=lambda: new_incarnation().hex(),
    )
    member = EtcdMember(config.site, world)
    founding = member.wake()
    if founding is not None:
        return founding
    if member.has_data:
        return await member.move()
    port = urlsplit(config.site.me.url).port
    assert port is not None, "checked at start"
    async with Doorplate(member.report, tls).serve_at(config.listen_host, port):
        await clock.sleep_ms(settle_ms(config.site))
        return await member.found()


def settle_ms(site: Site) -> int:
    """How long to wait before others are asked for: until their names are known, where they have names."""
    return SETTLE_MS if any(_is_name(urlsplit(peer.url).hostname) for peer in site.others) else 0


def _is_name(host: str | None) -> bool:
    try:
        ip_address(host or "")
    except ValueError:
        return True
    return False


def etcd_settings(config: EtcdMemberConfig, founding: Founding) -> dict[str, Any]:
    """What etcd's configuration says for this start."""
    me, tls = urlsplit(config.site.me.url), config.tls
    metrics = config.metrics_listen
    host = f"[{me.hostname}]" if ":" in (me.hostname or "") else me.hostname
    listen = f"[{config.listen_host}]" if ":" in config.listen_host else config.listen_host
    addresses = Addresses(
        listen_peer=f"{me.scheme}://{listen}:{me.port}",
        advertise_peer=config.site.me.url,
        listen_client=f"{me.scheme}://{listen}:{config.client_port}",
        advertise_client=f"{me.scheme}://{host}:{config.client_port}",
        listen_metrics=None if metrics is None else f"http://{metrics}",
    )
    told = None if tls is None else MemberTls(str(tls.cert), str(tls.key), str(tls.ca))
    return settings(config.name, str(config.data_dir), addresses, founding, told, config.more)
