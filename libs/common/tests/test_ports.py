"""Ports of tests: nobody else's, as long as the test process lives."""

import socket
import subprocess
import sys

import pytest

from headrace_common.testing import ports

TAKEN = "import sys; from headrace_common.testing import ports; print(ports._claimed(int(sys.argv[1])))"


def test_each_is_given_once() -> None:
    found = [ports.free_port() for _ in range(50)]
    assert len(set(found)) == 50
    assert all(ports.LOWEST <= port <= ports.HIGHEST for port in found)


@pytest.mark.skipif(sys.platform != "linux", reason="no abstract sockets")
def test_another_process_does_not_get_it_while_this_one_lives() -> None:
    port = ports.free_port()
    said = subprocess.run([sys.executable, "-c", TAKEN, str(port)], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_one_that_somebody_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken = listening.getsockname()[1]
        monkeypatch.setattr(ports, "_ports", iter([taken, ports.free_port() + 1]))
        assert ports.free_port() != taken
