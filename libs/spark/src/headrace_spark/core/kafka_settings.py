"""
Which settings with the prefix ``kafka.`` go on to the client, which are refused and why, and which mean nothing here.

Called by ``options``. What Spark's Kafka guide refuses is refused with the same reason; secrets are refused because
Spark writes options into plans, logs and its event log.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from headrace_spark.core.option_values import INT_MAX, Reader, boolean, choice, quote, text, whole

PREFIX: Final = "kafka."
BOOTSTRAP: Final = "bootstrap.servers"
GROUP_ID: Final = "group.id"

_COMMON: Final[Mapping[str, Reader]] = {
    "client.id": text,
    "request.timeout.ms": whole(1, INT_MAX),
    "metadata.max.age.ms": whole(100, INT_MAX),
    "retry.backoff.ms": whole(0, INT_MAX),
    "retry.backoff.max.ms": whole(0, INT_MAX),
}

READING: Final[Mapping[str, Reader]] = {
    **_COMMON,
    "isolation.level": choice("read_uncommitted", "read_committed"),
    "client.rack": text,
    "check.crcs": boolean,
    "fetch.min.bytes": whole(0, INT_MAX),
    "fetch.max.wait.ms": whole(0, 300_000),
    "fetch.max.bytes": whole(1, 1 << 30),
    "max.partition.fetch.bytes": whole(1, 1 << 30),
    "default.api.timeout.ms": whole(1, INT_MAX),
}
"""Given to consumers, with underscores for dots."""

WRITING: Final[Mapping[str, Reader]] = {
    **_COMMON,
    "acks": choice("all", "-1", "1", "0"),
    "enable.idempotence": boolean,
    "max.in.flight.requests.per.connection": whole(1, 1_000),
    "retries": whole(0, INT_MAX),
    "delivery.timeout.ms": whole(1, INT_MAX),
    "linger.ms": whole(0, INT_MAX),
    "batch.size": whole(1, 64 << 20),
    "buffer.memory": whole(1 << 16, 1 << 40),
    "max.block.ms": whole(0, INT_MAX),
    "max.request.size": whole(64, 64 << 20),
    "compression.type": choice("none", "gzip", "snappy", "lz4", "zstd"),
    "transaction.timeout.ms": whole(1, INT_MAX),
}
"""Given to producers, with underscores for dots."""

REFUSED_READING: Final[Mapping[str, str]] = {
    "auto.offset.reset": "the query keeps its positions itself; set 'startingOffsets' to earliest, latest or JSON",
    "key.deserializer": "keys are always bytes; use DataFrame operations to read them",
    "value.deserializer": "values are always bytes; use DataFrame operations to read them",
    "enable.auto.commit": "the query's checkpoint keeps its positions, no group does",
    "interceptor.classes": "nothing may change records on their way to Spark",
}
REFUSED_WRITING: Final[Mapping[str, str]] = {
    "key.serializer": "keys are written as bytes; use DataFrame operations to make them",
    "value.serializer": "values are written as bytes; use DataFrame operations to make them",
    "interceptor.classes": "nothing may change records on their way from Spark",
    "partitioner.class": "it names a Java class; give the DataFrame a column 'partition'",
    "transactional.id": "each task writes a transaction of its own, named after the query; see 'transactionalId'",
}

WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.commit.interval.ms",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "exclude.internal.topics",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "partitioner.ignore.keys",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
"""Kafka's, for threads, sockets or group members that the connector has not."""

_SECRETIVE: Final = (
    *("password", "secret", "token", "jaas", "credential", "passphrase", "keystore.key", "private"),
    *("apikey", "accesskey", "bearer", "authorization"),
)
_JOINED: Final = {ord(mark): None for mark in "._-"}
"""``api.key``, ``api_key`` and ``apiKey`` are one name."""
_SECURITY: Final = ("ssl.", "sasl.", "security.")


def is_secret(name: str) -> bool:
    """Whether a value under this name may be a secret: then no error or warning may show it."""
    plain = name.lower()
    joined = plain.translate(_JOINED)
    return any(word in plain or word in joined for word in _SECRETIVE)


def explain_secret(name: str) -> str:
    return (
        f"{quote(name)} looks like a secret, and Spark writes options into plans, logs and its event log, and may have "
        "written this one: make another. Give 'headrace.tokenFile', or 'headrace.token', which Spark hides"
    )


def read_setting(name: str, value: str, *, writing: bool) -> tuple[str, Any] | None:
    """
    Judge one setting, named without the prefix.

    Returns:
        The client's name for it and the value; None if it has no effect here.

    Raises:
        ValueError: it is refused, unknown, or of another form; the text is whole.
    """
    table, refused = (WRITING, REFUSED_WRITING) if writing else (READING, REFUSED_READING)
    other, other_refused = (READING, REFUSED_READING) if writing else (WRITING, REFUSED_WRITING)
    if is_secret(name):
        raise ValueError(explain_secret(PREFIX + name))
    if name in refused:
        raise ValueError(f"'{PREFIX}{name}' cannot be set: {refused[name]}")
    if name == "security.protocol" and value.strip().upper() == "PLAINTEXT":
        return None
    if name.startswith(_SECURITY):
        raise ValueError(
            f"{quote(PREFIX + name)} cannot be set: driver and executors speak TLS where HEADRACE_CA in their "
            "environment names a file of CAs, and show the API key that HEADRACE_API_KEY_FILE names; or give "
            "'headrace.caFile' and 'headrace.tokenFile'"
        )
    if name in table:
        try:
            return name.replace(".", "_"), table[name](value)
        except ValueError as error:
            raise ValueError(f"'{PREFIX}{name}' {error}") from None
    if name in WITHOUT_EFFECT:
        return None
    if name in other or name in other_refused or name == GROUP_ID:
        raise ValueError(f"'{PREFIX}{name}' is for {'reading' if writing else 'writing'}; leave it out here")
    raise ValueError(_unknown(name, [*table, BOOTSTRAP, *([] if writing else [GROUP_ID])]))


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{PREFIX}{near[0]}'?" if near else ""
    return f"{quote(PREFIX + name)} is not a setting{hint} Known: {', '.join(PREFIX + each for each in sorted(known))}"
