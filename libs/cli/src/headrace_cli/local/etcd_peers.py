"""
Moves the members of an etcd quorum, once, from plain addresses to ones with TLS; their data stays.

A data directory of before has members that know each other by ``http://`` addresses, which stand in etcd's data. For
the move each member listens for the others on both, the old port in plain and a new one with TLS, so that it is reached
whatever the others have been told yet; clients need a certificate from the first moment. Then the members are told
their new addresses, one by one, and all end. A move that was cut is begun again. The supervisor calls it before
anything runs.
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace_cli.local.certificate_files import EtcdFiles
from headrace_cli.local.etcd import etcd_serves
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import ProcessPlan
from headrace_cli.local.processes import spawn, tail, wait_until
from headrace_common.core.ids import Endpoint

MOVE_SECONDS: Final = 30.0
REQUEST_SECONDS: Final = 3.0
STOP_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.05
PLAIN: Final = ".plain-peer"
"""End of the names of ports under which members know each other in plain, until they have moved."""


def with_plain_peers(saved: Mapping[str, int]) -> dict[str, int]:
    """
    The ports in a file that does not say whether it names these. A version that knew no TLS (it had no port for etcd's
    metrics) had members' ports for each other in plain: these get names of their own, so that others are chosen beside
    them.
    """
    if "etcd-1.metrics" in saved:
        return dict(saved)
    return {
        slot.removesuffix(".peer") + PLAIN if slot.endswith(".peer") else slot: port for slot, port in saved.items()
    }


@dataclass(frozen=True, slots=True)
class MovingMember:
    """One member of the quorum."""

    plan: ProcessPlan
    peer: str
    """Where others will reach it, as ``host:port``."""
    plain: str
    """Where they reached it before."""
    log: Path

    @property
    def argv(self) -> tuple[str, ...]:
        """What it is started with for the move: etcd takes the last of options that are given twice."""
        urls = ("--listen-peer-urls", f"https://{self.peer},http://{self.plain}")
        return (*self.plan.argv, *urls, "--enable-grpc-gateway=true")


def move_peers(members: Sequence[MovingMember], files: EtcdFiles, stopped: Callable[[], bool]) -> None:
    """
    Start all members, tell them their new addresses, and stop them.

    Args:
        stopped: whether the start is given up meanwhile.

    Raises:
        LocalClusterFailed: they did not agree in time; nothing is lost, and the next start tries again.
    """
    running: list[subprocess.Popen[bytes]] = []
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.controller, files.key(files.controller))
    try:
        running += [spawn(member.argv, member.log) for member in members]
        done = wait_until(lambda: stopped() or _moved(members, context), MOVE_SECONDS, POLL_SECONDS)
    except OSError as error:
        raise LocalClusterFailed(f"cannot run {members[0].plan.argv[0]}: {error.strerror}") from error
    finally:
        _stop(running)
    if not done:
        said = tail(members[0].log, 6)
        raise LocalClusterFailed(
            f"the members of etcd did not agree on addresses with TLS in {MOVE_SECONDS:.0f} s; nothing is lost, try "
            f"again with all members' data and ports there. The end of {members[0].log}:\n{said}"
        )


def _moved(members: Sequence[MovingMember], context: ssl.SSLContext) -> bool:
    """One look: tell the members what they do not know yet; whether all of them know all."""
    if not all(etcd_serves(member.plan.metrics) for member in members):
        return False
    wanted = {member.plan.name: [f"https://{member.peer}"] for member in members}
    try:
        for found in _ask(members[0], context, "list", {"linearizable": True})["members"]:
            url = wanted[found["name"]]
            if found["peerURLs"] != url:
                _ask(members[0], context, "update", {"ID": found["ID"], "peerURLs": url})
        # Each by itself: one that does not know yet could not reach the others when nobody listens in plain any more.
        lists = [_ask(member, context, "list", {"linearizable": False})["members"] for member in members]
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False  # no leader yet, or none any more: looked at again until the time is over
    return all({m["name"]: m["peerURLs"] for m in known} == wanted for known in lists)


def _ask(member: MovingMember, context: ssl.SSLContext, what: str, request: Mapping[str, Any]) -> Any:
    """
    Raises:
        OSError, HTTPException, ValueError: it did not answer, or not that it did it.
    """
    at = Endpoint.parse(member.plan.grpc)
    connection = http.client.HTTPSConnection(at.host, at.port, context=context, timeout=REQUEST_SECONDS)
    try:
        connection.request("POST", f"/v3/cluster/member/{what}", json.dumps(request))
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise ValueError(f"etcd answered {answer.status}: {body[:200]!r}")
    return json.loads(body)


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
