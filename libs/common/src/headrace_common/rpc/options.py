"""
Decides the transport settings of every gRPC connection of Headrace: sizes, windows, keepalive, reconnects.

Called by whoever opens a channel (``rpc/channels.py``) or a server. One table per side, every limit explicit, so
that no default of the library decides how large a message may be or how long a dead peer stays unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLIENT_ID_KEY: Final = "headrace-client-id-bin"
"""Metadata of streams that produce and fetch: what the client calls itself, in UTF-8. Quotas count by it."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Largest message either way."""

WINDOW_BYTES: Final = 16 << 20
"""Bytes that may be under way on one stream before the reader has to ask for more: one large request or answer."""

CLIENT_PING_INTERVAL_MS: Final = 20_000
PING_TIMEOUT_MS: Final = 10_000
"""A peer that does not answer a ping for so long is gone."""

PING_INTERVAL_MS_MIN: Final = 5_000
"""A client that pings more often, and more than ``_PING_STRIKES_MAX`` times, is sent away (ping flood)."""

RECONNECT_MS_MAX: Final = 1_000
"""Longest pause between two attempts to connect."""

EAGER_RECONNECT_MS_MAX: Final = 250
"""The same where somebody waits: a broker may lead, and a coordinator answer, soon after it came back."""

CALLS_PER_CONNECTION_MAX: Final = 100
"""Of a client that asks for more calls on one connection the rest wait on its side."""

HANDSHAKE_MS_MAX: Final = 10_000
"""Who has connected and not spoken HTTP/2 for so long is cut off."""

METADATA_BYTES_MAX: Final = 32 << 10
_PING_STRIKES_MAX: Final = 2
_FRAME_BYTES_MAX: Final = 1 << 20
_WRITE_BUFFER_BYTES: Final = 1 << 20

Options = list[tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one listener takes."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Largest message it reads."""
    connections_max: int | None = None
    """Connections at one time; more are closed at once. None: no bound of its own."""
    calls_per_connection_max: int = CALLS_PER_CONNECTION_MAX
    idle_ms_max: int = 0
    """A connection without a call for so long is asked to go; clients connect again with their next call. 0: never."""


def _both_sides(receive_bytes_max: int) -> Options:
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES_MAX),
        ("grpc.http2.lookahead_bytes", min(WINDOW_BYTES, receive_bytes_max)),
        ("grpc.http2.bdp_probe", 1),
        ("grpc.http2.max_frame_size", _FRAME_BYTES_MAX),
        ("grpc.http2.write_buffer_size", _WRITE_BUFFER_BYTES),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        # Any ping, not only keepalive's: while one is under way no other is sent, and the default is a minute.
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def channel_options(
    *, own_connection: bool = False, reconnect_ms_max: int = RECONNECT_MS_MAX, server_name: str | None = None
) -> Options:
    """
    Options of a client channel.

    Args:
        own_connection: do not share a connection with other channels of this process to the same address.
        reconnect_ms_max: longest pause between two attempts to connect.
        server_name: what the server's certificate has to name; None: the host that is connected to.
    """
    named: Options = [] if server_name is None else [("grpc.ssl_target_name_override", server_name)]
    return [
        *named,
        *_both_sides(MESSAGE_BYTES_MAX),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),  # a request goes out once; whoever sent it knows whether to repeat it
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 3_000),  # also the time one attempt to connect may take
        ("grpc.max_reconnect_backoff_ms", reconnect_ms_max),
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # a restarted pod has another address
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    ]


def server_options(limits: ServerLimits | None = None, *, shared_port: bool = False) -> Options:
    """
    Options of a server, by default one without limits of its own. Dead connections are noticed by pings.

    Args:
        shared_port: other servers of this user may listen on its port at the same time. Else a port that is taken is an
            error, not half of the connections.
    """
    limits = limits or ServerLimits()
    bounds = {"grpc.max_allowed_incoming_connections": limits.connections_max or 0}
    bounds["grpc.max_connection_idle_ms"] = limits.idle_ms_max
    return [
        *_both_sides(limits.message_bytes_max),
        *((name, bound) for name, bound in bounds.items() if bound),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        ("grpc.so_reuseport", int(shared_port)),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        ("grpc.keepalive_time_ms", 3 * CLIENT_PING_INTERVAL_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        ("grpc.http2.max_ping_strikes", _PING_STRIKES_MAX),
    ]
