"""What the client of Kafka says, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as kafka

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.copying.port import SourceRefuses
from headrace_connect.connectors.copying.settings import SERVERS
from headrace_connect.connectors.kafka_import.settings import ImportSettings
from headrace_connect.plugin import RetriableError

_Error: Final = kafka.KafkaError
UNKNOWN: Final = frozenset(
    {
        _Error.UNKNOWN_TOPIC_OR_PART,
        _Error.UNKNOWN_TOPIC_ID,
        _Error._UNKNOWN_TOPIC,
        _Error._UNKNOWN_PARTITION,
    }
)
"""There is no such topic or partition, as far as somebody knows."""
OUTSIDE: Final = frozenset({_Error._AUTO_OFFSET_RESET, _Error._LOG_TRUNCATION, _Error.OFFSET_OUT_OF_RANGE})
"""The log does not hold the position."""
NO_GROUP: Final = _Error.GROUP_ID_NOT_FOUND
LOGIN: Final = frozenset({_Error._AUTHENTICATION, _Error._SSL, _Error.SASL_AUTHENTICATION_FAILED})
"""Nobody is let in."""
_RIGHTS: Final = {
    _Error.TOPIC_AUTHORIZATION_FAILED: "--operation Read --operation DescribeConfigs --topic",
    _Error.GROUP_AUTHORIZATION_FAILED: "--operation Describe --group",
}
HEARD: Final = LOGIN | {_Error._RESOLVE, _Error._ALL_BROKERS_DOWN, _Error._TRANSPORT}
"""What is said of connections, and not of a call."""
_AWAY: Final = frozenset({_Error._TIMED_OUT, _Error._TRANSPORT, _Error._ALL_BROKERS_DOWN, _Error._RESOLVE})
_NAMED: Final = re.compile(r'property:? "([^"]+)"')


def fault_of(error: Any, what: str, servers: str, heard: Any = None) -> Exception:
    """
    Args:
        error: what failed.
        what: a topic or group that was asked for, for messages; empty: it was about more than one, or none.
        heard: what was said of connections before; it counts where nobody has answered.
    """
    if error.code() in _AWAY and heard is not None:
        error = heard
    code, text = error.code(), error.str()
    if code in LOGIN:
        return SourceRefuses(
            f"{SERVERS}: {servers} does not let this client in: {text}. Look at "
            "source.cluster.security.protocol, source.cluster.sasl.mechanism, .sasl.username, .sasl.password and "
            "source.cluster.ssl.ca.location"
        )
    if code in _RIGHTS:
        return SourceRefuses(
            f"the source refuses {what or 'this'}: {text}. This gives the right: kafka-acls.sh --add --allow-principal "
            f"User:NAME {_RIGHTS[code]} '{what or '*'}'"
        )
    if code in _AWAY:
        return RetriableError(f"{SERVERS}: {servers} does not answer: {text}")
    return RetriableError(f"{what}: {text}" if what else text)


@contextmanager
def creation(settings: ImportSettings) -> Iterator[None]:
    """
    Around the creation of a client of these settings.

    Raises:
        InvalidConfig: a property is wrong; says which.
    """
    try:
        yield
    except kafka.KafkaException as error:
        text = error.args[0].str()
        named = _NAMED.search(text)
        key = settings.key_of(named[1]) if named else "source.cluster.*, source.consumer.*"
        raise InvalidConfig(f"{key}: {text}") from error
