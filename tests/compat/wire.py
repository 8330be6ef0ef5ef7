"""Recorded requests: how they are written down, sent again as the bytes that they were, and compared."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio
from google.protobuf import json_format
from google.protobuf.message import Message

from headrace_proto.v1 import broker_pb2, controller_pb2, coordinator_pb2, transaction_pb2

STREAMS: Final = frozenset({"Produce", "Fetch", "WatchMetadata"})
"""Of these one answer is taken for one request."""

MESSAGES: Final[Mapping[str, Any]] = {
    "Broker": broker_pb2,
    "Controller": controller_pb2,
    "Coordinator": coordinator_pb2,
    "TransactionCoordinator": transaction_pb2,
}
_ANSWERS: Final = {"WatchMetadata": "MetadataUpdate", "TxnOffsetCommit": "CommitOffsetsResponse"}

MOVING: Final = frozenset(
    {
        *("grpc", "http", "metrics", "external", "endpoint", "active_controller", "version"),
        *("epoch", "leader_epoch", "partition_epoch", "incarnation", "revision", "controller_epoch"),
        *(
            "producer_id",
            "producer_epoch",
            "state_ms",
            "last_timestamp_ms",
            "open_ms",
            "prepared_ms",
            "started_ms",
            "committed_at_ms",
        ),
        *("notes", "documentation", "message", "shards", "nodes"),
    }
)
"""What differs from start to start, or is for people: not compared."""

ADDED: Final = frozenset({"feature_level", "feature_level_max"})
"""Fields that came after the recording."""

ADDED_SETTINGS: Final = frozenset({"audit.access", "fencing.required"})
"""Of topics, in descriptions."""


@dataclass(frozen=True)
class Exchange:
    """One request, and the first answer that it got."""

    service: str
    method: str
    request: bytes
    answer: bytes

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.service}.{self.method}"

    def asked(self) -> Message:
        """The request, as today's messages have it."""
        made: Message = getattr(MESSAGES[self.service], f"{self.method}Request").FromString(self.request)
        return made

    def answered(self, answer: bytes | None = None) -> Message:
        """An answer (the recorded one), as today's messages have it."""
        name = _ANSWERS.get(self.method, f"{self.method}Response")
        module = MESSAGES[self.service]
        if self.method == "WatchMetadata":
            from headrace_proto.v1 import cluster_pb2

            module = cluster_pb2
        made: Message = getattr(module, name).FromString(self.answer if answer is None else answer)
        return made


def read(path: Path) -> list[Exchange]:
    """A transcript."""
    lines = map(json.loads, path.read_text().splitlines())
    return [Exchange(service, method, _raw(request), _raw(answer)) for service, method, request, answer in lines]


def write(path: Path, exchanges: Iterable[Exchange]) -> None:
    """One line each."""
    lines = [[e.service, e.method, _text(e.request), _text(e.answer)] for e in exchanges]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


async def send(channel: grpc.aio.Channel, service: str, method: str, request: bytes) -> bytes:
    """The first answer to ``request``, bytes for bytes."""
    path = f"/headrace.v1.{service}/{method}"
    if method not in STREAMS:
        return bytes(await channel.unary_unary(path)(request, timeout=30))
    if method == "WatchMetadata":
        call = channel.unary_stream(path)(request, timeout=30)
    else:
        call = channel.stream_stream(path)(timeout=30)
        await call.write(request)
    try:
        return bytes(await call.read())
    finally:
        call.cancel()


def fields(message: Message, *, but: Sequence[str] = ()) -> Any:
    """What is compared of an answer: everything that stays the same from start to start."""
    whole = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _without(whole, MOVING | ADDED | set(but))


def _without(value: Any, names: frozenset[str] | set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, names) for key, each in value.items() if key not in names}
    if isinstance(value, list):
        kept = (each for each in value if not isinstance(each, dict) or each.get("name") not in ADDED_SETTINGS)
        return [_without(each, names) for each in kept]
    return value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _raw(text: str) -> bytes:
    return base64.b64decode(text)


async def settled(seconds: float, holds: Any) -> None:
    """Ask until ``holds()``, an awaitable, is true."""
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.05)
