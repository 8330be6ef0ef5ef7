"""Ports that a parent holds: nobody else gets one while its process is dead, and its process gets it always."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace_common.core.ids import Endpoint
from headrace_common.runtime import held_ports
from headrace_common.runtime.held_ports import VARIABLE, for_child, hold_port, keep_alone, shared, take_inherited
from headrace_common.runtime.port_claims import prove_port
from headrace_common.runtime.service import CannotListen, GrpcService, ServerConfig

NOBODY = 65_534
HOSTS = ["127.0.0.1", "0.0.0.0", "::"]
TAKE = """
import os, socket, sys
host, port, reuse_address, reuse_port, user = sys.argv[1], *map(int, sys.argv[2:])
os.setuid(user)
with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
    if taken.family == socket.AF_INET6:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
    taken.bind((host, port))
    taken.listen()
"""


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = hold_port("127.0.0.1", port)
    assert made is not None
    with made:
        yield made


@pytest.fixture
def mine(held: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """The port, held for this process."""
    at: tuple[str, int] = held.getsockname()
    monkeypatch.setattr(held_ports, "_inherited", lambda: {at: held})
    return Endpoint(*at)


def takes(at: Endpoint, host: str, *, reuse_address: bool, reuse_port: bool, user: int = -1) -> bool:
    """Whether another process gets the port, as this user or as another."""
    given = (at.port, int(reuse_address), int(reuse_port), os.geteuid() if user < 0 else user)
    argv = [sys.executable, "-I", "-c", TAKE, host, *map(str, given)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "Address already in use" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("host", HOSTS)
def test_nobody_listens_there_while_the_child_is_dead(mine: Endpoint, host: str) -> None:
    for option in (False, True):
        assert not takes(mine, host, reuse_address=option, reuse_port=option)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((mine.host, mine.port))
    assert hold_port(mine.host, mine.port) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("host", HOSTS)
def test_another_user_never_gets_it(mine: Endpoint, host: str) -> None:
    assert not takes(mine, host, reuse_address=True, reuse_port=True, user=NOBODY)
    with shared(mine) as is_shared:
        assert is_shared
        assert not takes(mine, host, reuse_address=True, reuse_port=True, user=NOBODY), "not while ours begins either"
        assert takes(mine, host, reuse_address=True, reuse_port=True), "of this user"
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as bare:
        other = Endpoint("127.0.0.1", bare.getsockname()[1])
        assert not takes(other, host, reuse_address=True, reuse_port=True, user=NOBODY), "so it is without a hold"


async def test_a_server_gets_it_again_and_again_and_shares_it_with_nobody(mine: Endpoint) -> None:
    for _ in range(2):
        async with GrpcService.open(ServerConfig(listen=mine, drain_ms_max=0), []) as service:
            assert service.port == mine.port
            assert not takes(mine, mine.host, reuse_address=True, reuse_port=True)
            with pytest.raises(CannotListen):
                async with GrpcService.open(ServerConfig(listen=mine, drain_ms_max=0), []):
                    pass
    assert not takes(mine, mine.host, reuse_address=True, reuse_port=True)


def test_a_server_of_this_user_that_came_while_it_was_shared_is_found(held: socket.socket, mine: Endpoint) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the child died while it began to listen
    with socket.create_server((mine.host, mine.port), reuse_port=True):
        keep_alone(held)
        with pytest.raises(OSError, match="in use"), prove_port(mine, frozenset()):
            pass
        with pytest.raises(OSError, match="in use"), shared(mine):
            pass
        with shared(mine, first=False) as is_shared:
            assert is_shared, "another one of the same process"
    with prove_port(mine, frozenset()) as port:
        assert port == mine.port


def test_a_port_that_is_not_held_is_nobodys_business(mine: Endpoint) -> None:
    with shared(Endpoint(mine.host, mine.port + 1)) as is_shared:
        assert not is_shared


def test_a_port_on_which_somebody_listens_is_not_held() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        assert hold_port("127.0.0.1", taken.getsockname()[1]) is None
    assert hold_port("192.0.2.1", 9) is None, "no address of this machine"


def test_connections_of_before_are_not_in_the_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = server.getsockname()
        client = socket.create_connection(at)
        server.accept()[0].close()  # it closes first, so its end of the connection stays for a minute
        client.close()
    held = hold_port(*at)
    assert held is not None
    held.close()


def test_a_child_inherits_it_and_hands_it_on_to_nobody(held: socket.socket) -> None:
    say = (
        "import os; from headrace_common.runtime.held_ports import take_inherited, VARIABLE; "
        "found = take_inherited(os.environ); "
        "print(*found, *(os.get_inheritable(s.fileno()) for s in found.values()), VARIABLE in os.environ)"
    )
    done = subprocess.run(
        [sys.executable, "-c", say],
        env={**os.environ, **for_child([held])},
        pass_fds=[held.fileno()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{held.getsockname()} False False"


@pytest.mark.parametrize("text", ["", "x", "0", "999999", "-1", ",,"])
def test_descriptors_that_are_no_sockets_are_left_alone(text: str) -> None:
    environment = {VARIABLE: text} if text else {}
    assert take_inherited(environment) == {}
    assert not environment
