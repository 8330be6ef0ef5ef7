"""
Answers of ``Metadata``: of named topics made for each request, of all topics kept for whoever sees the same ones.

Clients of a large cluster ask for all topics again and again. So the answer is built once for those who see the same,
and which topics a caller sees is found once while neither the topics nor the rules change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace_broker.engine.broker import Broker
from headrace_broker.rpc import encode
from headrace_common.core.access.control import Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.right import Right
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.ids import TopicId
from headrace_common.core.image import Listener, Topic
from headrace_proto.v1 import broker_pb2 as pb

ANSWERS_MAX: Final = 64
"""Of all topics, for callers who see different ones."""
CALLERS_MAX: Final = 1_000
"""Of whom is remembered which topics they see: a byte for each topic."""
_ALL: Final = b""


class MetadataAnswers:
    """
    Of one listener. One event loop.

    Args:
        listener: its clients are told the addresses of the same.
        request_bytes_max: its largest request, which bounds what is told of batches.
    """

    def __init__(self, broker: Broker, request_bytes_max: int, *, listener: Listener) -> None:
        self._broker = broker
        self._request_bytes_max = request_bytes_max
        self._listener = listener
        self._at: tuple[bytes, int] = (b"", -1)
        self._answers: dict[bytes, pb.MetadataResponse] = {}
        """Of all topics, by which of them are in it; of the image ``_at``."""
        self._topics: Mapping[TopicId, Topic] = {}
        self._names: list[str] = []
        """Of ``_topics``, ascending."""
        self._generation = -1
        self._seen: dict[Caller, bytes] = {}
        """Which of ``_names`` a caller sees, by the rules of ``_generation``."""

    def answer(self, request: pb.MetadataRequest, rights: Rights) -> pb.MetadataResponse:
        """
        What the caller may know of the cluster; nobody changes the answer.

        Raises:
            MetadataUnavailable: this broker knows of no cluster yet.
        """
        image = self._broker.replicas.image
        if image.revision == 0:  # just started; to say that topics do not exist would make clients forget them
            raise MetadataUnavailable("this broker has not heard from a controller yet; ask another one, or again")
        if request.all_topics:
            return self._all(rights)
        right = Right(rights, Operation.DESCRIBE, ResourceType.TOPIC)
        refused = {name: right.refusal(name) for name in request.topics if not right.may(name)}
        limits = self._broker.follower.message_limits(
            (name for name in request.topics if name not in refused), self._request_bytes_max
        )
        return encode.metadata(image, request.topics, limits, listener=self._listener, refused=refused)

    def _all(self, rights: Rights) -> pb.MetadataResponse:
        image = self._broker.replicas.image
        now = (image.incarnation, image.revision)
        if self._at != now:
            self._at = now
            self._answers.clear()
        seen = self._find_seen(rights)
        known = self._answers.get(seen)
        if known is not None:
            return known
        names = self._names if seen == _ALL else [name for name, sees in zip(self._names, seen, strict=True) if sees]
        limits = self._broker.follower.message_limits(names, self._request_bytes_max)
        answer = encode.metadata(image, names, limits, listener=self._listener)
        if len(self._answers) >= ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[seen] = answer
        return answer

    def _find_seen(self, rights: Rights) -> bytes:
        """For each name whether it is in the answer; ``_ALL``: all are."""
        topics = self._broker.replicas.image.topics
        if self._topics is not topics:
            self._topics = topics
            self._names = sorted(topic.name for topic in topics.values())
            self._seen.clear()
        if rights.control.view.mode is not Mode.CLOSED:
            return _ALL
        if self._generation != rights.generation:
            self._generation = rights.generation
            self._seen.clear()
        known = self._seen.get(rights.caller)
        if known is None:
            sees = [rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in self._names]
            known = _ALL if all(sees) else bytes(sees)
            if len(self._seen) >= CALLERS_MAX:
                self._seen.clear()
            self._seen[rights.caller] = known
        return known
