"""A broker is asked to leave through a unix socket of its own; ``prestop`` does it and says how it ended."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headrace_broker import prestop
from headrace_broker.rpc.leaving import serve_leave_requests


@pytest.fixture
def path() -> Iterator[Path]:
    """Short, as a socket's path has to be."""
    with TemporaryDirectory(prefix="hr-") as directory:
        yield Path(directory) / "leave"


async def asked(path: Path) -> int:
    return await asyncio.to_thread(prestop.main, {"HEADRACE_BROKER_LEAVE_SOCKET": str(path)})


async def clean() -> bool:
    return True


async def late() -> bool:
    return False


async def test_prestop_tells_how_it_ended(path: Path) -> None:
    async with serve_leave_requests(path, clean):
        assert await asked(path) == 0
        assert await asked(path) == 0
    async with serve_leave_requests(path, late):
        assert await asked(path) == 1
    assert not path.exists()


async def test_the_socket_is_for_the_broker_s_user_alone(path: Path) -> None:
    async with serve_leave_requests(path, clean):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert mode & 0o777 == 0o600


async def test_a_socket_that_a_killed_broker_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with serve_leave_requests(path, clean):
        assert await asked(path) == 0


async def test_where_there_can_be_no_socket_the_broker_does_not_start(path: Path) -> None:
    path.write_text("precious")
    for wrong in (path, path.parent / "no-such-directory" / "leave", path.parent / (110 * "x")):
        with pytest.raises(OSError, match="cannot listen on"):
            async with serve_leave_requests(wrong, clean):
                pass
    assert path.read_text() == "precious"


async def test_without_a_socket_nobody_is_heard() -> None:
    async with serve_leave_requests(None, clean):
        assert prestop.main({}) == 2


def test_prestop_without_a_broker_that_answers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prestop.main({"HEADRACE_BROKER_LEAVE_SOCKET": str(path)}) == 1
    assert "did not leave" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{}, {"HEADRACE_BROKER_LEAVE_SOCKET": ""}])
def test_prestop_without_a_socket_to_ask_at(settings: dict[str, str]) -> None:
    assert prestop.main(settings) == 2
