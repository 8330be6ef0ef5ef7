"""``produce`` and ``consume`` where a person sits: a real terminal (a pty), a real broker."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

from headrace import Producer
from headrace_cli.interrupts import Interrupted, end_if_interrupted, interruptible
from headrace_cli.terminal import visible, visible_bytes

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A broker with topics for these tests."""
    broker = BrokerThread({"typed": 1, "nasty": 1, "empty": 1, "numbers": 1})
    with Producer(broker.address) as producer:
        producer.send("nasty", b"a\x1b[2Jb\x9b31mc\rd\xff", key=b"\x1b]0;title\x07")
        for number in range(100):
            producer.send("numbers", b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")
        producer.flush(30)
    yield broker.address
    broker.stop()


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, *argv: str, cwd: Path) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "headrace_cli", *argv]
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, start_new_session=True
        )
        os.close(slave)
        self.seen = b""

    def until(self, text: str) -> None:
        """Read until this appears."""
        end = time.monotonic() + WAIT_SECONDS
        while text.encode() not in self.seen:
            assert self._read(end), f"{text!r} never came: {self.seen!r}"

    def _read(self, end: float) -> bool:
        readable, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if readable else b""
        except OSError:  # its other end was closed
            data = b""
        self.seen += data
        return bool(data)

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def interrupt(self) -> None:
        os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        """All that it still says, and how it ends."""
        end = time.monotonic() + WAIT_SECONDS
        while self._read(end):
            pass
        code = self._process.wait(WAIT_SECONDS)
        os.close(self._master)
        return code


def test_who_types_records_is_told_how_and_how_many(address: str, tmp_path: Path) -> None:
    terminal = Terminal("produce", "typed", "-b", address, cwd=tmp_path)
    terminal.until("each line is a record of typed: type its value, then Enter; Ctrl+D ends")
    terminal.type(b"one\n")
    terminal.until("one\r\n")
    terminal.type(b"\x04")
    assert terminal.end() == 0
    assert b"1 record (3 B) is in typed" in terminal.seen
    assert b"acknowledged" not in terminal.seen, "progress would tear the line that is typed"


def test_who_waits_is_told_that_and_for_what(address: str, tmp_path: Path) -> None:
    terminal = Terminal("consume", "empty", "-b", address, cwd=tmp_path)
    terminal.until("waiting for records of empty that come from now on (--from beginning shows those that are there)")
    terminal.interrupt()
    assert terminal.end() == 130
    assert b"0 records of empty shown" in terminal.seen


def test_at_a_terminal_escape_sequences_of_records_are_shown_and_not_obeyed(address: str, tmp_path: Path) -> None:
    for form in ("%k %s\\n", "json"):
        terminal = Terminal("consume", "nasty", "-b", address, "-e", "-f", form, cwd=tmp_path)
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.seen, terminal.seen
        assert not re.search(rb"\r(?!\n)", terminal.seen), "no carriage return but the terminal's own"
        assert b"1 record of nasty shown" in terminal.seen
    raw = Terminal("consume", "nasty", "-b", address, "-e", "--raw", cwd=tmp_path)
    assert raw.end() == 0
    assert b"a\x1b[2Jb" in raw.seen


def consumed(address: str, *argv: str, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "headrace_cli", "consume", "numbers", "-b", address, *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_a_pipe_gets_the_bytes_and_no_hints(address: str) -> None:
    command = [sys.executable, "-m", "headrace_cli", "consume", "nasty", "-b", address, "-e"]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_SECONDS, check=True)
    assert done.stdout == b"a\x1b[2Jb\x9b31mc\rd\xff\n"
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("argv", "printed"),
    [
        (["--until", "3"], "0 1 2"),
        (["--from", "97", "--until", "end"], "97 98 99"),
        (["--from", "90", "--until", "-7"], "90 91 92"),
        (["--from", "-3", "-e"], "97 98 99"),
        (["--until", "2000-01-01"], ""),
        (["--until", "0s", "--from", "98"], "98 99"),
        (["--until", "8", "--key", "odd"], "1 3 5 7"),
        (["-e", "--grep", "^1.$", "--key", "even"], "10 12 14 16 18"),
        (["--from", "beginning", "--grep", "7$", "-n", "3"], "7 17 27"),
    ],
)
def test_an_end_and_a_filter(address: str, argv: list[str], printed: str) -> None:
    assert consumed(address, *argv)[0].split() == printed.split()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--until", "soon"], "--until 'soon' is not known"),
        (["--until", "beginning"], "nothing is before that"),
        (["--until", "2999-01-01"], "has not come yet"),
        (["--until", "3", "-e"], "give one of them"),
        (["--grep", "("], "no regular expression"),
        (["--until", "3", "-g", "g"], "--until takes end"),
        (["--from", "5m", "--until", "1h"], "--until '1h' is before --from '5m'"),
    ],
)
def test_an_end_or_a_filter_that_means_nothing_is_refused(address: str, argv: list[str], said: str) -> None:
    assert said in consumed(address, *argv, code=2)[1]


def test_a_signal_whose_exception_was_dropped_still_ends_the_loop() -> None:
    with interruptible(signal.SIGUSR1):
        with contextlib.suppress(KeyboardInterrupt):  # as Python does around finalisers
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Interrupted):
            end_if_interrupted()
    with interruptible(signal.SIGUSR1):
        end_if_interrupted()


def test_what_is_text_stays_text() -> None:
    assert visible("Grüße\n\tzwei") == "Grüße\n\tzwei"
    assert visible("a\x1b[1m\u202eb\x9b\r") == "a\\x1b[1m\\u202eb\\x9b\\r"
    assert visible_bytes(b"plain") == b"plain"
    assert visible_bytes("Grüße".encode()) == "Grüße".encode()
    assert visible_bytes(b"\xff\x00") == b"\\xff\\x00"
