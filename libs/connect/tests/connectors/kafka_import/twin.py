"""
A broker in memory that speaks as much of Kafka's protocol as its client needs to copy topics. A test changes
``Broker.state``: there are no writes over the wire.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from libs.connect.tests.connectors.kafka_import.wire import In, Out, encode_marker, encode_record

UNKNOWN_TOPIC: Final = 3
OUT_OF_RANGE: Final = 1
TOPIC_REFUSED: Final = 29
GROUP_NOT_FOUND: Final = 69
_VERSIONS: Final = {
    0: (3, 7),
    1: (4, 11),
    2: (2, 5),
    3: (0, 12),
    9: (7, 7),
    10: (0, 2),
    15: (0, 4),
    18: (0, 3),
    32: (1, 1),
}
_FLEXIBLE: Final = {3: 9, 9: 6}
"""From which version on; of those that are spoken. Calls of 0 never come: they say that there are batches."""
_PIDS: Final = count(1_000)


@dataclass
class Log:
    """A partition."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """Offset and bytes; each has one record."""
    start: int = 0
    end: int = 0
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset, offset of the marker."""

    def write(self, records: list[Any], commits: bool | None) -> None:
        """In a transaction that is committed or aborted; None: in none."""
        pid, first = next(_PIDS) if commits is not None else -1, self.end
        for record in records:
            self.batches.append((self.end, encode_record(self.end, pid, record)))
            self.end += 1
        if commits is None:
            return
        self.batches.append((self.end, encode_marker(self.end, pid, commits)))
        if not commits:
            self.aborted.append((pid, first, self.end))
        self.end += 1

    def delete_below(self, start: int) -> None:
        self.start = start
        self.batches = [one for one in self.batches if one[0] >= start]

    def compact(self, *gone: int) -> None:
        """Without the records at these offsets."""
        self.batches = [one for one in self.batches if one[0] not in gone]


@dataclass
class Topic:
    logs: list[Log]
    configs: dict[str, str] = field(default_factory=dict)
    id: uuid.UUID = field(default_factory=uuid.uuid4)


@dataclass
class State:
    """What is there, whoever is connected. Changed with ``lock`` held."""

    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Topics that the client has no right to read."""
    lock: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self.lock:
            yield
            self.lock.notify_all()

    def log(self, topic: str, partition: int) -> Log | None:
        found = self.topics.get(topic)
        return found.logs[partition] if found is not None and partition < len(found.logs) else None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class Broker:
    """One, that leads everything. ``with Broker() as broker``."""

    def __init__(self) -> None:
        self.state = State()
        self.port = 0
        self._server: _Server | None = None
        self._connections: set[Any] = set()

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """At the port that it had before."""
        broker = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                broker._connections.add(self.request)
                try:
                    broker._serve(self.request)
                except OSError:
                    pass
                finally:
                    broker._connections.discard(self.request)

        self._server = _Server(("127.0.0.1", self.port), Connection)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Its topics stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._connections):
            with suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: Any) -> None:
        stream = connection.makefile("rb")
        while size := stream.read(4):
            request = In(stream.read(struct.unpack(">i", size)[0]))
            key, version, correlation = request.int16(), request.int16(), request.int32()
            request.string()  # of the client
            flexible = version >= _FLEXIBLE.get(key, 99)
            answer = Out().int32(correlation)
            if flexible:
                request.tags()
                answer.tags()
            handlers: dict[int, Callable[[In, Out, int], None]] = {
                1: self._fetch,
                2: self._list_offsets,
                3: self._metadata,
                9: self._offset_fetch,
                10: self._coordinator,
                15: self._describe_groups,
                18: self._versions,
                32: self._describe_configs,
            }
            with self.state.lock:
                handlers[key](request, answer, version)
            body = bytes(answer.parts)
            connection.sendall(struct.pack(">i", len(body)) + body)

    # --- the calls ----------------------------------------------------------------------------------------------------

    def _versions(self, request: In, answer: Out, version: int) -> None:
        if version < 3:
            answer.int16(0).array(_VERSIONS.items(), lambda one: answer.int16(one[0]).int16(one[1][0]).int16(one[1][1]))
            if version:
                answer.int32(0)
            return
        answer.int16(0)
        answer.compact(_VERSIONS.items(), lambda one: answer.int16(one[0]).int16(one[1][0]).int16(one[1][1]).tags())
        answer.int32(0).tags()

    def _metadata(self, request: In, answer: Out, version: int) -> None:
        assert version == 12, "there is no reason for another one"
        asked = request.compact(lambda: (request.take(16), request.compact_string(), request.tags())[1])
        names = list(self.state.topics) if asked is None else asked
        answer.int32(0)
        answer.compact(
            [1], lambda one: answer.int32(one).compact_string("127.0.0.1").int32(self.port).compact_string(None).tags()
        )
        answer.compact_string("a-twin").int32(1)

        def write(name: str) -> None:
            topic = self.state.topics.get(name)
            refused = name in self.state.refused
            answer.int16(TOPIC_REFUSED if refused else 0 if topic else UNKNOWN_TOPIC).compact_string(name)
            answer.raw(topic.id.bytes if topic else bytes(16)).int8(name.startswith("__"))
            answer.compact(range(len(topic.logs)) if topic and not refused else (), partition)
            answer.int32(-(1 << 31)).tags()

        def partition(number: int) -> None:
            answer.int16(0).int32(number).int32(1).int32(0)
            for replicas in ([1], [1], []):
                answer.compact(replicas, answer.int32)
            answer.tags()

        answer.compact(names, write)
        answer.tags()

    def _fetch(self, request: In, answer: Out, version: int) -> None:
        assert version == 11, "there is no reason for another one"
        _, wait_ms, *_ = [request.int32() for _ in range(4)]
        request.int8()
        request.int32(), request.int32()
        asked = request.array(
            lambda: (
                request.string(),
                request.array(
                    lambda: (request.int32(), request.int32(), request.int64(), request.int64(), request.int32())
                ),
            )
        )

        def news() -> bool:
            logs = [(self.state.log(name, one[0]), one[2]) for name, parts in asked for one in parts]
            return any(log is None or log.end != offset for log, offset in logs)

        self.state.lock.wait_for(news, min(wait_ms, 100) / 1_000)
        answer.int32(0).int16(0).int32(0)

        def write(one: tuple[str, list[Any]]) -> None:
            answer.string(one[0]).array(one[1], lambda part: self._fetched(answer, one[0], part[0], part[2]))

        answer.array(asked, write)

    def _fetched(self, answer: Out, topic: str, partition: int, offset: int) -> None:
        log = self.state.log(topic, partition)
        error = TOPIC_REFUSED if topic in self.state.refused else UNKNOWN_TOPIC if log is None else 0
        log = log or Log()
        if not error and not log.start <= offset <= log.end:
            error = OUT_OF_RANGE
        answer.int32(partition).int16(error).int64(log.end).int64(log.end).int64(log.start)
        aborted = [one for one in log.aborted if one[2] >= offset]
        answer.array(aborted, lambda one: answer.int64(one[0]).int64(one[1])).int32(-1)
        answer.bytes_(b"" if error else b"".join([batch for at, batch in log.batches if at >= offset][:1_000]))

    def _list_offsets(self, request: In, answer: Out, version: int) -> None:
        request.int32(), request.int8()
        at = (lambda: (request.int32(), request.int32(), request.int64())) if version >= 4 else None
        read = at or (lambda: (request.int32(), -1, request.int64()))
        asked = request.array(lambda: (request.string(), request.array(read)))
        answer.int32(0)

        def write(name: str, part: Any) -> None:
            log = self.state.log(name, part[0])
            offset = -1 if log is None else log.start if part[2] == -2 else log.end
            answer.int32(part[0]).int16(UNKNOWN_TOPIC if log is None else 0).int64(-1).int64(offset)
            if version >= 4:
                answer.int32(-1)

        answer.array(asked, lambda one: answer.string(one[0]).array(one[1], lambda part: write(one[0], part)))

    def _coordinator(self, request: In, answer: Out, version: int) -> None:
        if version:
            answer.int32(0)
        answer.int16(0)
        if version:
            answer.string(None)
        answer.int32(1).string("127.0.0.1").int32(self.port)

    def _offset_fetch(self, request: In, answer: Out, version: int) -> None:
        positions = self.state.groups.get(str(request.compact_string()), {})
        topics = {name: [one for one in positions if one[0] == name] for name, _ in positions}
        answer.int32(0)

        def write(name: str) -> None:
            answer.compact_string(name).compact(topics[name], part).tags()

        def part(one: tuple[str, int]) -> None:
            answer.int32(one[1]).int64(positions[one]).int32(-1).compact_string("").int16(0).tags()

        answer.compact(topics, write)
        answer.int16(0).tags()

    def _describe_groups(self, request: In, answer: Out, version: int) -> None:
        asked = request.array(request.string)
        answer.int32(0)

        def write(group: str) -> None:
            count = self.state.members.get(group, 0)
            known = group in self.state.groups or count
            answer.int16(0).string(group).string("Stable" if count else "Empty" if known else "Dead")
            answer.string("consumer").string("range")
            answer.array(range(count), member).int32(-(1 << 31))

        def member(number: int) -> None:
            answer.string(f"m{number}").string(None).string("client").string("/127.0.0.1").bytes_(b"").bytes_(b"")

        answer.array(asked, write)

    def _describe_configs(self, request: In, answer: Out, version: int) -> None:
        asked = request.array(lambda: (request.int8(), request.string(), request.array(request.string))[1])
        answer.int32(0)

        def write(name: str) -> None:
            topic = self.state.topics.get(name)
            refused = name in self.state.refused
            answer.int16(TOPIC_REFUSED if refused else 0 if topic else UNKNOWN_TOPIC).string(None).int8(2).string(name)
            own = {} if topic is None or refused else {**topic.configs, "segment.bytes": None}
            answer.array(own.items(), config)

        def config(one: tuple[str, str | None]) -> None:
            set_here = one[1] is not None
            answer.string(one[0]).string(one[1] if set_here else "1073741824").int8(0).int8(1 if set_here else 5)
            answer.int8(0).array((), answer.string)

        answer.array(asked, write)
