"""A broker is asked to leave on its health port, by its own machine only; ``prestop`` does it and says how it ended."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from headrace_broker import prestop
from headrace_broker.core import leaving
from headrace_broker.rpc.leaving import LeavingServicer, add_leaving_servicer, is_local
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.service import ServerConfig


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:51000", True),
        ("ipv6:%5B::1%5D:51000", True),
        ("ipv6:[::1]:51000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:51000", True),
        ("unix:", True),
        ("ipv4:10.0.0.7:51000", False),
        ("ipv6:%5B::ffff:10.0.0.7%5D:51000", False),
        ("ipv6:%5Bfd00::7%5D:51000", False),
        ("ipv4:localhost:1", False),
        ("", False),
    ],
)
def test_who_is_on_this_machine(peer: str, local: bool) -> None:
    assert is_local(peer) is local


async def served(listen: str, *, clean: bool) -> tuple[object, int]:
    """An answer of prestop, asked of a port that listens there."""

    async def leave() -> bool:
        return clean

    config = ServerConfig(health_listen=Endpoint(listen, 0))
    async with HealthPort.open(config, [(add_leaving_servicer, LeavingServicer(leave))]) as port:
        assert port.endpoint is not None
        env = {"HEADRACE_BROKER_HEALTH_LISTEN": f"{listen}:{port.endpoint.port}"}
        return await asyncio.to_thread(prestop.main, env), port.endpoint.port


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("clean", "code"), [(True, 0), (False, 1)])
async def test_prestop_tells_how_it_ended(listen: str, clean: bool, code: int) -> None:
    assert (await served(listen, clean=clean))[0] == code


class Context:
    """A call from an address."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


async def test_others_are_refused() -> None:
    asked: list[bool] = []

    async def leave() -> bool:
        asked.append(True)
        return True

    servicer: Any = LeavingServicer(leave)
    with pytest.raises(Rejected, match="own machine only"):
        await servicer.handle(b"", Context("ipv4:10.0.0.7:51000"))
    assert not asked
    assert await servicer.handle(b"", Context("ipv4:127.0.0.1:51000")) == leaving.LEFT


def test_prestop_without_a_broker_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, and nobody listens
        assert prestop.main({"HEADRACE_BROKER_HEALTH_LISTEN": f"127.0.0.1:{port}"}) == 1
    assert "did not leave" in capsys.readouterr().err


@pytest.mark.parametrize("listen", [None, "", "9101", "0.0.0.0:0", "0.0.0.0:x"])
def test_prestop_without_a_port_to_ask(listen: str | None) -> None:
    assert prestop.main({} if listen is None else {"HEADRACE_BROKER_HEALTH_LISTEN": listen}) == 2
