"""What the sync consumer does with the process around it: Ctrl+C, forks, threads, imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import headrace
from headrace import errors
from headrace.testing import MemoryBackend

WAITS = """
import os, signal, sys, headrace
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
from headrace.testing import MemoryBackend
memory = MemoryBackend()
memory.create_topic("t")
consumer = memory.consumer("t")
consumer.poll(timeout_ms=0)
real_wait = consumer._wait
def wait(deadline_ms):
    os.write(1, b"waiting\\n")  # at once: the interrupt may come in its midst
    return real_wait(deadline_ms)
consumer._wait = wait
try:
    {wait}
except KeyboardInterrupt:
    memory.producer().send("t", b"after").result(timeout=10)
    consumer._wait = real_wait
    print(consumer.poll(timeout_ms=10_000)[0].value, flush=True)
"""


@pytest.mark.parametrize(
    "wait", ["consumer.poll(timeout_ms=None)", "next(iter(consumer))", "consumer.poll_table(timeout_ms=None)"]
)
def test_ctrl_c_ends_a_wait_and_the_consumer_goes_on(wait: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", WAITS.format(wait=wait)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        try:
            said, _ = child.communicate(timeout=60)
        finally:
            child.kill()
        assert said.splitlines()[-1] == "b'after'"
        assert child.returncode == 0


def test_a_child_after_a_fork_is_told_to_make_its_own(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("t")
    with headrace_memory.consumer("t") as consumer:
        consumer.poll(timeout_ms=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                consumer.poll()
            except errors.ClientClosed as error:
                code = 0 if "forked" in str(error) and consumer.state == "closed" else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        consumer.poll(timeout_ms=0)


def test_two_threads_at_once_are_refused(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("t")
    with headrace_memory.consumer("t") as consumer:
        consumer.poll(timeout_ms=0)
        inside = threading.Event()
        real_wait = consumer._wait

        def wait(deadline_ms: float | None) -> bool:
            inside.set()
            return real_wait(deadline_ms)

        consumer._wait = wait
        waiting = threading.Thread(target=consumer.poll, args=(2000,))
        waiting.start()
        assert inside.wait(10)
        with pytest.raises(errors.Rejected, match="another thread"):
            consumer.poll()
        with headrace_memory.producer() as producer:
            producer.send("t", b"x").result(timeout=10)
        waiting.join(10)
        assert not waiting.is_alive()


def test_importing_the_consumer_loads_nothing_heavy() -> None:
    loaded = "print([m for m in sys.modules if m in ('numpy', 'pyarrow')])"
    probe = f"import sys, headrace.consumer, headrace.admin_types; {loaded}"
    said = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_consumer_left_open_does_not_keep_the_process(headrace_memory: MemoryBackend) -> None:
    code = """
from headrace.testing import MemoryBackend
memory = MemoryBackend()
memory.create_topic("t")
memory.consumer("t").poll(timeout_ms=0)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False, capture_output=True).returncode == 0


def test_the_package_names_are_the_consumer_and_the_admin_client() -> None:
    from headrace import aio

    assert headrace.Consumer.__module__ == "headrace.consumer"
    assert headrace.AdminClient.__module__ == "headrace.admin"
    assert aio.Consumer.__module__ == "headrace.aio.consumer"
    assert aio.AdminClient.__module__ == "headrace.aio.admin"


def test_a_consumer_that_nobody_closed_says_so_and_stops_fetching(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("t")
    consumer = headrace_memory.consumer("t")
    consumer.poll(timeout_ms=0)
    transport = consumer._transport
    closed = threading.Event()
    real_close = transport.close

    async def close() -> None:
        await real_close()
        closed.set()

    transport.close = close
    with pytest.warns(ResourceWarning, match="was not closed"):
        del consumer
    assert closed.wait(10)
