"""
Settings by the names that people bring: Kafka's with dots, and those of other clients that are something else here.

``read_settings`` takes dots for underscores and asks ``explain_setting`` about names that it does not know. ``split``
takes the cluster's addresses out of what a client was given: confluent-kafka passes a dict as the only argument::

    >>> split({"bootstrap.servers": "kafka:9292", "linger.ms": 20}, {})
    ('kafka:9292', {'linger.ms': 20})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig

Servers = str | Sequence[str] | Mapping[str, Any] | None
"""What the clients take as their cluster: addresses, or all settings in a dict, as confluent-kafka does."""

SERVERS: Final = ("bootstrap.servers", "bootstrap_servers", "metadata.broker.list")

_SECURITY: Final = (
    "{name}: clients show an API key, a token, a password, or a certificate in PEM: api_key_file, token_file, username "
    "and password, or cert_file and key_file; see docs/coming-from.md#tls-and-sasl"
)
_CA: Final = "{name}: write the CAs of the brokers into a file in PEM, and its path as ssl_ca_location"
_CHECKED: Final = "{name}: certificates and the names in them are always checked; leave it out"
_LEAVE_OUT: Final = "{name} means nothing here: leave it out"
_LOGS: Final = "{name}: logs go to logging.getLogger('headrace'); leave it out"
_SOCKETS: Final = "{name}: connections are gRPC's, which sees to that itself; leave it out"

_ALWAYS: Final = frozenset(
    {"enable_ssl_certificate_verification", "ssl_check_hostname", "ssl_endpoint_identification_algorithm"}
)

_ELSEWHERE: Final[Mapping[str, str]] = {
    "api_version": _LEAVE_OUT,
    "api_version_auto_timeout_ms": _LEAVE_OUT,
    "api_version_request": _LEAVE_OUT,
    "batch_num_messages": "{name}: batches are bounded in bytes; write batch_size",
    "broker_address_family": _SOCKETS,
    "broker_version_fallback": _LEAVE_OUT,
    "compression_codec": "{name} is compression_type here",
    "compression_level": "{name}: each codec has one level; leave it out",
    "connections_max_idle_ms": _SOCKETS,
    "consumer_timeout_ms": "{name}: read_to_end() ends at the end, and poll(timeout_ms) returns an empty list",
    "debug": _LOGS,
    "default_topic_config": "{name}: write its settings beside the others",
    "delivery_report_only_error": "{name}: look at batch.error in on_delivery",
    "dr_cb": "{name} is on_delivery here, which is called with whole batches",
    "dr_msg_cb": "{name} is on_delivery here, which is called with whole batches",
    "enable_auto_offset_store": "{name}: what was handed out is handled at the next poll; or commit({{tp: offset}})",
    "enable_partition_eof": "{name}: read_to_end() ends at the end; or compare position() with end_offsets()",
    "error_cb": "{name}: errors are raised by the calls that they concern, and logged; leave it out",
    "fetch_error_backoff_ms": "{name} is retry_backoff_ms here",
    "fetch_message_max_bytes": "{name} is max_partition_fetch_bytes here",
    "fetch_wait_max_ms": "{name} is fetch_max_wait_ms here",
    "log_cb": _LOGS,
    "log_level": _LOGS,
    "logger": _LOGS,
    "loop": "{name}: a client of headrace.aio belongs to the loop that it is first used on; leave it out",
    "max_in_flight_requests": "{name} is max_in_flight_requests_per_connection here",
    "message_max_bytes": "{name} is max_request_size here",
    "message_send_max_retries": "{name} is retries here",
    "message_timeout_ms": "{name} is delivery_timeout_ms here",
    "metric_reporters": "{name}: ask health(), or leave it out",
    "offset_store_method": "{name}: offsets are with the group; leave it out",
    "plugin_library_paths": _LEAVE_OUT,
    "queue_buffering_max_kbytes": "{name} is buffer_memory here, in bytes",
    "queue_buffering_max_messages": "{name}: the buffer is bounded in bytes; write buffer_memory",
    "queue_buffering_max_ms": "{name} is linger_ms here",
    "queued_max_messages_kbytes": "{name} is fetch_max_bytes here, in bytes",
    "queued_min_messages": "{name}: what is fetched ahead is bounded in bytes; write fetch_max_bytes",
    "receive_buffer_bytes": _SOCKETS,
    "reconnect_backoff_max_ms": _SOCKETS,
    "reconnect_backoff_ms": _SOCKETS,
    "request_required_acks": "{name} is acks here",
    "retry_backoff_ms_max": "{name} is retry_backoff_max_ms here",
    "selector": _SOCKETS,
    "send_buffer_bytes": _SOCKETS,
    "sock_chunk_bytes": _SOCKETS,
    "statistics_interval_ms": "{name}: ask health() when you want to know; leave it out",
    "stats_cb": "{name}: ask health() when you want to know; leave it out",
    "throttle_cb": "{name}: nothing is throttled yet; leave it out",
    "topic_metadata_refresh_interval_ms": "{name} is metadata_max_age_ms here",
}
"""By name with underscores."""


def explain_setting(name: str) -> str | None:
    """What to do about a setting of another client; None: nobody knows it."""
    plain = name.replace(".", "_")
    if plain.startswith("ssl_truststore_") or plain in ("ssl_cafile", "ssl_ca_pem", "ssl_context"):
        return _CA.format(name=name)
    if plain in _ALWAYS:
        return _CHECKED.format(name=name)
    if plain.startswith(("ssl_", "sasl_")):
        return _SECURITY.format(name=name)
    if plain.startswith(("socket_", "sock_")):
        return _SOCKETS.format(name=name)
    text = _ELSEWHERE.get(plain)
    return None if text is None else text.format(name=name)


def split(servers: Servers, settings: Mapping[str, Any]) -> tuple[str | Sequence[str] | None, dict[str, Any]]:
    """
    The cluster's addresses, and the other settings.

    Raises:
        InvalidConfig: a setting, or the cluster, is given twice.
    """
    if isinstance(servers, Mapping):
        twice = sorted({_plain(name) for name in servers} & {_plain(name) for name in settings})
        if twice:
            raise InvalidConfig(f"{', '.join(twice)}: given in the dict and as an argument; leave one out")
        settings = {**servers, **settings}
        servers = None
    found = [name for name in SERVERS if settings.get(name) is not None]
    if len(found) + (servers is not None) > 1:
        raise InvalidConfig(f"the cluster is given more than once ({', '.join(found)}); give its addresses once")
    addresses: str | Sequence[str] | None = settings[found[0]] if found else servers
    return addresses, {name: value for name, value in settings.items() if name not in SERVERS}


def _plain(name: str) -> str:
    return name.replace(".", "_")
