"""How a service process lives and leaves: real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_common.core.errors import InvalidConfig, StorageFailed
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel, open_sync_channel
from headrace_common.runtime.service import CannotListen, GrpcService, Ready, ServerConfig, announce_ready, run_process

CHILD = Path(__file__).with_name("service_child.py")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Child:
    process: subprocess.Popen[str]
    ready: dict[str, Any]
    lines: list[dict[str, Any]]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def messages(self) -> list[str]:
        return [line["msg"] for line in self.lines]


@contextmanager
def child(tmp_path: Path, drain_ms_max: int = 5_000) -> Iterator[Child]:
    ready = tmp_path / "ready.json"
    argv = [sys.executable, str(CHILD), str(ready), str(drain_ms_max)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    lines: list[dict[str, Any]] = []
    is_ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for text in process.stderr:
            if text.startswith("{"):
                lines.append(json.loads(text))
                if lines[-1]["msg"] == "ready":
                    is_ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert is_ready.wait(30), lines
        yield Child(process, json.loads(ready.read_bytes()), lines)
    finally:
        process.kill()
        process.wait(10)
        reader.join(10)


def test_it_says_where_it_listens_and_leaves_on_sigterm(tmp_path: Path) -> None:
    with child(tmp_path) as c:
        assert c.ready["name"] == "child-1"
        assert c.ready["pid"] == c.process.pid
        assert (c.ready["http"], c.ready["metrics"]) == (None, None)
        with open_sync_channel(c.ready["grpc"]) as channel:
            assert channel.unary_unary("/t.T/slow")(b"0", timeout=10) == b"done"
        c.signal(signal.SIGTERM)
        assert c.process.wait(20) == 0
    assert any("loopback" in m for m in c.messages())
    assert c.messages()[-2:] == ["stopping", "closed"]
    assert [p.name for p in tmp_path.iterdir()] == ["ready.json"], "no half-written file is left"


@pytest.mark.parametrize("error", [CannotListen("the port is taken"), StorageFailed("the disk is gone")])
def test_what_the_text_says_needs_no_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def serve(stop: asyncio.Event) -> None:
        raise error

    assert run_process(serve) == 1
    [told] = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert told.getMessage() == f"the process ends: {error}"
    assert told.exc_info is None


def test_a_call_under_way_is_finished_and_new_ones_are_refused(tmp_path: Path) -> None:
    with child(tmp_path) as c, open_sync_channel(c.ready["grpc"]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="t.T"), timeout=30)
        assert next(watch).status == SERVING
        call = channel.unary_unary("/t.T/slow").future(b"1.0", timeout=30)
        assert channel.unary_unary("/t.T/slow")(b"0", timeout=10) == b"done"
        c.signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        watch.cancel()
        assert call.result() == b"done"
        assert c.process.wait(20) == 0


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    with child(tmp_path, drain_ms_max=200) as c, open_sync_channel(c.ready["grpc"]) as channel:
        call = channel.unary_unary("/t.T/slow").future(b"600", timeout=60)
        assert channel.unary_unary("/t.T/slow")(b"0", timeout=10) == b"done"
        c.signal(signal.SIGINT)
        assert c.process.wait(20) == 0
        with pytest.raises(grpc.RpcError):
            call.result()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with child(tmp_path, drain_ms_max=600_000) as c, open_sync_channel(c.ready["grpc"]) as channel:
        channel.unary_unary("/t.T/slow").future(b"600", timeout=60)
        assert channel.unary_unary("/t.T/slow")(b"0", timeout=10) == b"done"
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watch).status == SERVING
        c.signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        c.signal(signal.SIGTERM)
        assert c.process.wait(20) == 130


def test_a_crashed_loop_ends_the_process_with_1(tmp_path: Path) -> None:
    with child(tmp_path) as c:
        with open_sync_channel(c.ready["grpc"]) as channel:
            channel.unary_unary("/t.T/crash")(b"", timeout=10)
        assert c.process.wait(20) == 1
    assert any("ValueError" in line.get("error", "") for line in c.lines)


async def test_health_follows_set_serving() -> None:
    config = ServerConfig(drain_ms_max=0)
    async with (
        GrpcService.open(config, [], ["a.B"], serving=False) as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="a.B")
        assert (await health.Check(request)).status == NOT_SERVING
        await server.set_serving(True, "a.B")
        assert (await health.Check(request)).status == SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING


async def test_a_taken_port_is_an_error_that_says_so() -> None:
    config = ServerConfig(drain_ms_max=0)
    async with GrpcService.open(config, []) as one:
        taken = ServerConfig(listen=Endpoint("127.0.0.1", one.port))
        with pytest.raises(OSError, match="cannot listen on"):
            async with GrpcService.open(taken, []):
                pass


async def test_draining_tells_streams_to_end() -> None:
    ended = asyncio.Event()
    holder: list[GrpcService] = []

    async def stream(request: bytes, context: Any) -> Any:
        yield b"begun"
        await holder[0].draining.wait()
        yield b"last"
        ended.set()

    handlers = {"s": grpc.unary_stream_rpc_method_handler(stream)}
    add = lambda _, server: server.add_generic_rpc_handlers(  # noqa: E731
        [grpc.method_handlers_generic_handler("t.T", handlers)]
    )
    async with GrpcService.open(ServerConfig(), [(add, None)]) as server:
        holder.append(server)
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            messages = aiter(channel.unary_stream("/t.T/s")(b""))
            assert await anext(messages) == b"begun"
            draining = asyncio.ensure_future(server.drain())
            assert await anext(messages) == b"last"
            await draining
    assert ended.is_set()


def test_addresses_to_register() -> None:
    assert str(ServerConfig().choose_endpoint(5)) == "127.0.0.1:5"
    assert str(ServerConfig(advertise_host="b-1").choose_endpoint(5)) == "b-1:5"
    anywhere = ServerConfig(listen=Endpoint("0.0.0.0", 0)).choose_endpoint(5)
    assert anywhere.host not in {"0.0.0.0", ""}
    named = ServerConfig(advertise_host="b-1")
    assert str(named.reachable(Endpoint("0.0.0.0", 9100))) == "b-1:9100"
    assert str(ServerConfig().reachable(Endpoint("127.0.0.2", 9100))) == "127.0.0.2:9100"
    assert named.reachable(None) is None


@pytest.mark.parametrize(
    "wrong", [{"drain_ms_max": -1}, {"concurrent_rpcs_max": 0}, {"log_level": "loud"}, {"feature_level_max": 99}]
)
def test_settings_out_of_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="takes"):
        ServerConfig(**wrong)


def test_a_ready_file_replaces_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("old")
    announce_ready(Ready("x-1", http=Endpoint("h", 1)), path)
    assert json.loads(path.read_bytes())["http"] == "h:1"
