"""Ports of tests: nobody else's, as long as the test process lives."""

import socket
import subprocess
import sys

import pytest
from libs.common.tests.kit import ports

from headrace_common.runtime.port_claims import claim_port

CLAIM = "import sys; from headrace_common.runtime.port_claims import claim_port; print(claim_port(int(sys.argv[1])))"


def test_each_is_given_once() -> None:
    found = [ports.free_port() for _ in range(50)]
    assert len(set(found)) == 50
    assert all(ports.LOWEST <= port <= ports.HIGHEST for port in found)


def test_another_process_does_not_get_it_until_it_is_given_back() -> None:
    port = ports.free_port()

    def elsewhere() -> str:
        argv = [sys.executable, "-c", CLAIM, str(port)]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert elsewhere() == "None\n"
    ports.give_back(port)
    assert elsewhere().startswith("<socket.socket")


def test_whoever_has_the_claim_may_listen() -> None:
    port = ports.free_port()
    with socket.socket() as listening:
        listening.bind(("", port))
        listening.listen()


def test_claims_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_claims", {})
    monkeypatch.setattr(ports, "KEPT", 2)
    first, second, third = (ports.free_port() for _ in range(3))
    assert list(ports._claims) == [second, third]
    claim = claim_port(first)
    assert claim is not None
    claim.close()


def test_one_that_somebody_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken, other = listening.getsockname()[1], ports.free_port()
        ports.give_back(other)
        monkeypatch.setattr(ports, "_ports", iter([taken, other]))
        assert ports.free_port() == other
