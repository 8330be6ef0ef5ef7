"""Names of things: small value types that every member uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple, NewType
from urllib.parse import quote

from headrace_common.core.errors import InvalidTopic

Offset = NewType("Offset", int)
"""The number of a record in its partition, from 0. A log end is the offset of the next record to be written."""

NodeId = NewType("NodeId", int)
"""The number of a process within its role, 0 to 2147483647."""

TopicId = NewType("TopicId", bytes)
"""16 bytes; a topic that is created again under its old name has another."""

NO_NODE: Final = NodeId(-1)
NO_PRODUCER_ID: Final = -1
TOPIC_NAME_LENGTH_MAX: Final = 249
PARTITIONS_PER_TOPIC_MAX: Final = 100_000

_HOST = re.compile(r"[^\s:/@?#\[\]]+")
_V6 = re.compile(r"(?=.*:.*:)[0-9A-Fa-f:.]+(%[^\s:/@?#\[\]]+)?")
_PORT = re.compile(r"[0-9]{1,5}")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition, by the name of its topic: what clients speak of."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionId(NamedTuple):
    """One partition, by the id of its topic: what brokers and the controller speak of."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one interface of a process listens."""

    host: str
    port: int
    server_name: str = ""
    """What its certificate names, where that is not ``host``; a role, as pods come and go with their addresses."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Endpoint:
        """
        ``host:port`` or ``[v6]:port``.

        Raises:
            ValueError: not of that form, as a URL is not, or the port is not in 0..65535.
        """
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (_HOST.fullmatch(host) or _V6.fullmatch(host)) or not _PORT.fullmatch(port) or int(port) > 65535:
            raise ValueError(f"{text!r} is not an address; write it as host:port, for example 127.0.0.1:9292")
        return Endpoint(host, int(port))


def is_loopback(target: str) -> bool:
    """Whether ``host:port`` is surely of this machine: no name but localhost is believed."""
    host = target.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def in_ids(name: str) -> str:
    """
    As the name of a connector or of a Connect cluster stands in transactional ids and owners: neither dots nor slashes.
    """
    return quote(name, safe="").replace(".", "%2E")


def check_topic_name(name: str) -> str:
    """
    Return ``name`` if a topic may be called so: 1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` and not ``..``.

    Raises:
        InvalidTopic: with the rule that is broken.
    """
    if not isinstance(name, str):
        raise InvalidTopic(f"a topic name is text, not {name!r}")
    if not name:
        raise InvalidTopic("a topic name cannot be empty")
    if name in {".", ".."}:
        raise InvalidTopic(f"a topic cannot be called {name!r}")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopic(f"the topic name has {len(name)} characters; {TOPIC_NAME_LENGTH_MAX} is the most")
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopic(f"topic name {name[:60]!r} has other characters than a-z, A-Z, 0-9, '.', '_' and '-'")
    return name


def names_collide(one: str, other: str) -> bool:
    """Whether two different names become the same metric name, in which ``.`` and ``_`` look alike."""
    return one != other and one.replace(".", "_") == other.replace(".", "_")
