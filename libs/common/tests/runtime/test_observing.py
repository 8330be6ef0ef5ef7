"""Logs, metrics and traces."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.runtime.collector import collector

from headrace_common.core.errors import Overloaded
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime import traceparent, tracing
from headrace_common.runtime.logs import configure_logs, logger
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.rpc_metrics import RpcMetrics
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.traceparent import TraceParent
from headrace_common.runtime.tracing import TracingInterceptor, open_tracer, open_tracing


@pytest.fixture
def lines() -> Iterator[Any]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()
    configure_logs("broker", 3, "info", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], logging.raiseExceptions = handlers, raises
    root.setLevel(level)


class TestLogs:
    def test_a_line_has_who_when_what_and_extras(self, lines: Any) -> None:
        logger("x.y").info(
            "leads %s", "it", extra={"partition": 3, "epoch": 7, "topic_id": b"\x01", "who": Endpoint("h", 1)}
        )
        (line,) = lines()
        assert line.pop("ts").endswith("Z")
        assert line == {
            "level": "info",
            "logger": "x.y",
            "msg": "leads it",
            "service": "broker",
            "node": 3,
            "partition": 3,
            "epoch": 7,
            "topic_id": "01",
            "who": "h:1",
        }

    def test_a_failure_is_one_line_with_its_trace(self, lines: Any) -> None:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger("x").exception("failed")
        (line,) = lines()
        assert "ValueError: two\nlines" in line["error"]
        assert "Traceback" in line["error"]

    def test_levels(self, lines: Any) -> None:
        logger("x").debug("not shown")
        assert lines() == []
        with pytest.raises(ValueError, match="debug, info"):
            configure_logs("x", 1, "loud")

    @given(
        text=st.text(st.characters()),
        extra=st.recursive(st.none() | st.integers() | st.text(st.characters()) | st.floats(), st.lists),
    )
    def test_anything_can_be_logged(self, text: str, extra: Any) -> None:
        from headrace_common.runtime.logs import JsonLines

        record = logging.makeLogRecord({"msg": "%s", "args": (text,), "levelno": 20, "levelname": "INFO", "x": extra})
        line = JsonLines("s", 1).format(record)
        assert "\n" not in line
        assert isinstance(json.loads(line), dict)


class TestMetrics:
    def test_an_instrument_can_be_read_over_http(self) -> None:
        with open_metrics("broker", 1, Endpoint("127.0.0.1", 0)) as metrics:
            metrics.meter.create_counter("headrace_appends").add(3, {"topic": "t"})
            assert metrics.endpoint is not None
            assert metrics.endpoint.port > 0
            text = urlopen(f"http://{metrics.endpoint}/metrics", timeout=10).read().decode()
        assert "headrace_appends_total{" in text
        assert 'topic="t"' in text
        assert "process_cpu_seconds_total" in text

    def test_two_in_one_process_do_not_mix_and_the_port_is_free_afterwards(self) -> None:
        with (
            open_metrics("a", 1, Endpoint("127.0.0.1", 0)) as one,
            open_metrics("b", 2, Endpoint("127.0.0.1", 0)) as two,
        ):
            one.meter.create_counter("only_one").add(1)
            assert b"only_one" not in urlopen(f"http://{two.endpoint}/metrics", timeout=10).read()
        assert one.endpoint is not None
        with open_metrics("a", 1, one.endpoint):
            pass

    def test_off_costs_nothing_and_works(self) -> None:
        with open_metrics("a", 1, None) as metrics:
            assert metrics.endpoint is None
            metrics.meter.create_counter("c").add(1)


class TestRpcMetrics:
    async def test_calls_are_counted_by_how_they_ended(self) -> None:
        async def unary(request: bytes, context: Any) -> bytes:
            if request:
                raise Overloaded("queue full")
            return b""

        async def stream(request: bytes, context: Any) -> Any:
            yield request

        handlers = {
            "unary": grpc.unary_unary_rpc_method_handler(unary),
            "stream": grpc.unary_stream_rpc_method_handler(stream),
        }

        def add(_: object, server: Any) -> None:
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])

        with open_metrics("x", 1, Endpoint("127.0.0.1", 0)) as metrics:
            async with (
                GrpcService.open(
                    ServerConfig(drain_ms_max=0), [(add, None)], interceptors=[RpcMetrics(metrics.meter)]
                ) as server,
                open_channel(f"127.0.0.1:{server.port}") as channel,
            ):
                await channel.unary_unary("/t.T/unary")(b"")
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary("/t.T/unary")(b"x")
                assert [m async for m in channel.unary_stream("/t.T/stream")(b"y")] == [b"y"]
            text = urlopen(f"http://{metrics.endpoint}/metrics", timeout=10).read().decode()
        calls = {line.split("{")[1] for line in text.splitlines() if line.startswith("headrace_rpc_calls_total{")}
        seen = {
            (m, e)
            for m in ("unary", "stream")
            for e in ("NONE", "OVERLOADED")
            for c in calls
            if f'method="t.T/{m}"' in c and f'error="{e}"' in c
        }
        assert seen == {("unary", "NONE"), ("unary", "OVERLOADED"), ("stream", "NONE")}
        assert "headrace_rpc_duration_seconds_count" in text


class TestTraceParent:
    @given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
    def test_there_and_back(self, trace_id: int, span_id: int, sampled: bool) -> None:
        parent = TraceParent(trace_id, span_id, sampled)
        assert TraceParent.parse(str(parent)) == parent
        assert traceparent.from_headers([("x", None), traceparent.to_header(parent)]) == parent

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "00-0-0-0",
            f"00-{'0' * 32}-{'1' * 16}-01",
            f"00-{'1' * 32}-{'0' * 16}-01",
            f"ff-{'1' * 32}-{'1' * 16}-01",
            f"00-{'1' * 32}-{'1' * 16}-01-more",
            f"00-{'G' * 32}-{'1' * 16}-01",
        ],
    )
    def test_what_is_not_valid_is_no_parent(self, text: str) -> None:
        assert TraceParent.parse(text) is None

    def test_a_later_version_may_say_more(self) -> None:
        assert TraceParent.parse(f"01-{'1' * 32}-{'2' * 16}-01-more") is not None

    def test_nobody_traces_here(self) -> None:
        assert traceparent.current() is None
        assert traceparent.from_headers([("traceparent", b"\xff"), ("other", b"x")]) is None


class TestTracing:
    def test_off_unless_an_endpoint_is_set(self) -> None:
        with open_tracing("x", 1, env={}) as interceptor:
            assert interceptor is None

    def test_spans_are_sent_before_the_process_ends(self) -> None:
        with collector() as there:
            with open_tracer("demo", "host-7", there.endpoint) as tracer:
                assert tracer is not None
                tracer.start_span("work").end()
            [(name, process)] = there.spans
        assert (name, process["service.name"], process["service.instance.id"]) == ("work", "headrace-demo", "host-7")

    def test_a_collector_that_does_not_answer_keeps_no_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tracing, "CLOSE_S", 0.1)
        with collector() as there:
            there.answers.clear()
            with open_tracer("demo", "1", there.endpoint) as tracer:
                assert tracer is not None
                tracer.start_span("work").end()
            assert there.asked.wait(30)
            waits = [thread.name for thread in threading.enumerate() if thread.name == "send the last spans"]
            assert waits, "it is still asked, and nobody waits for it"

    async def test_a_call_is_a_span_under_its_caller(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans))
        seen: list[TraceParent | None] = []

        async def answer(request: bytes, context: Any) -> bytes:
            seen.append(traceparent.current())
            return request

        async def stream(request: bytes, context: Any) -> Any:
            yield request

        handlers = {
            "unary": grpc.unary_unary_rpc_method_handler(answer),
            "stream": grpc.unary_stream_rpc_method_handler(stream),
        }
        add = lambda _, server: server.add_generic_rpc_handlers(  # noqa: E731
            [grpc.method_handlers_generic_handler("t.T", handlers)]
        )
        parent = TraceParent(0xABC, 0xDEF)
        interceptor = TracingInterceptor(provider.get_tracer("test"))
        config = ServerConfig(drain_ms_max=0)
        async with (
            GrpcService.open(config, [(add, None)], interceptors=[interceptor]) as server,
            open_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            await channel.unary_unary("/t.T/unary")(b"x", metadata=(("traceparent", str(parent)),))
            assert [m async for m in channel.unary_stream("/t.T/stream")(b"y")] == [b"y"]
        under, alone = spans.get_finished_spans()
        assert under.context is not None
        assert under.parent is not None
        assert (under.name, under.context.trace_id, under.parent.span_id) == ("t.T/unary", 0xABC, 0xDEF)
        assert seen == [TraceParent(0xABC, under.context.span_id)]
        assert alone.parent is None


def test_rpc_and_traceparent_load_no_opentelemetry() -> None:
    code = (
        "import sys, headrace_common.rpc.options, headrace_common.rpc.status, headrace_common.rpc.interceptor,"
        " headrace_common.runtime.traceparent, headrace_common.runtime.clock, headrace_common.runtime.tracing;"
        "print([m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'prometheus_client', 'fastapi')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
