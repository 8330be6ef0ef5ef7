"""Limits of a connection, seen from a client that does not keep to them."""

from __future__ import annotations

import asyncio
import struct

from headrace_common.rpc.options import PING_INTERVAL_MS_MIN, channel_options, server_options
from headrace_common.runtime.service import GrpcService, ServerConfig

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ENHANCE_YOUR_CALM = 11


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readexactly(9)
    return head[3], await reader.readexactly(int.from_bytes(head[:3], "big"))


async def test_a_client_that_floods_with_pings_is_sent_away() -> None:
    async with GrpcService.open(ServerConfig(drain_ms_max=0), []) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE + frame(SETTINGS) + frame(PING, b"12345678") * 20)
        await writer.drain()
        kind, payload = await read_frame(reader)
        while kind != GOAWAY:
            kind, payload = await read_frame(reader)
        _, code = struct.unpack(">II", payload[:8])
        assert code == ENHANCE_YOUR_CALM
        writer.close()


async def test_what_is_not_http2_is_cut_off_and_the_server_goes_on() -> None:
    async with GrpcService.open(ServerConfig(drain_ms_max=0), []) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + bytes(1_000))
        assert len(await reader.read()) < 10_000
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE + frame(SETTINGS))
        assert (await read_frame(reader))[0] == SETTINGS
        writer.close()


def test_our_own_pings_are_allowed() -> None:
    client, server = dict(channel_options()), dict(server_options())
    assert client["grpc.keepalive_time_ms"] > PING_INTERVAL_MS_MIN
    assert server["grpc.http2.min_ping_interval_without_data_ms"] == PING_INTERVAL_MS_MIN
    assert client["grpc.enable_http_proxy"] == 0
    assert server["grpc.so_reuseport"] == 0
    assert dict(server_options(shared_port=True))["grpc.so_reuseport"] == 1
    assert "grpc.ssl_target_name_override" not in client
    for side in (client, server):
        assert side["grpc.http2.ping_timeout_ms"] == side["grpc.keepalive_timeout_ms"] <= 10_000
        assert side["grpc.max_receive_message_length"] == side["grpc.max_send_message_length"] == 64 << 20
    assert dict(channel_options(own_connection=True))["grpc.use_local_subchannel_pool"] == 1
