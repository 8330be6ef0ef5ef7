"""One group as a coordinator has it: the coordinator's own core, whose records are durable at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Final

from headrace_common.core.ids import TopicId
from headrace_coordinator.core.effects import Answer, CloseStream, Effect, GroupDescription, Send
from headrace_coordinator.core.events import DescriptionAsked, Event, Left, Loaded, StreamBroke, TopicsChanged, Woken
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Moment, TopicInfo
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.rpc import decode, encode
from headrace_proto.v1 import coordinator_pb2 as pb

GROUP: Final = "g"


class Line:
    """One stream: what is said waits in it until somebody lets it through."""

    def __init__(self, number: int) -> None:
        self.stream = MemberStream(number, GROUP, "")
        self.up: deque[pb.MembershipRequest] = deque()
        self.down: deque[pb.MembershipResponse | None] = deque()
        """None: the coordinator has ended it."""


class GroupCore:
    """See the module's text. Time is what the caller says that it is, in ``now_ms``."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.now_ms = 0.0
        self._shard = Shard(0, GroupSettings(group_initial_rebalance_delay_ms=0))
        self._lines: dict[int, Line] = {}
        self._numbers = count(1)
        self._ids = count(1)
        self.show(topics)
        self._handle(Loaded(self._at()))

    @property
    def members(self) -> set[str]:
        """Their ids."""
        [answer] = self._shard.handle(DescriptionAsked(GROUP, None, self._at()))
        assert isinstance(answer, Answer)
        found = answer.result
        return {each.member_id for each in found.members} if isinstance(found, GroupDescription) else set()

    def show(self, topics: Mapping[str, int]) -> None:
        """How many partitions there are of each topic."""
        infos = {name: TopicInfo(TopicId(name.encode() * 16), number) for name, number in topics.items()}
        self._handle(TopicsChanged(self._at(), infos, {}))

    def pass_time(self, now_ms: float) -> None:
        """It is ``now_ms``."""
        self.now_ms = now_ms
        while (due_ms := self._shard.next_wake_ms()) is not None and due_ms <= now_ms:
            self._handle(Woken(self._at()))

    def open(self) -> Line:
        """A new stream."""
        line = Line(next(self._numbers))
        self._lines[line.stream.number] = line
        return line

    def hear(self, line: Line) -> None:
        """What was said first over this line arrives, if it was not ended."""
        request = line.up.popleft()
        if line.stream.number in self._lines:
            self._handle(
                decode.member_event(request, line.stream, self._at(), lambda name: f"{name}-{next(self._ids)}")
            )

    def lose(self, line: Line) -> None:
        """The line is broken."""
        if self._lines.pop(line.stream.number, None) is not None:
            self._handle(StreamBroke(GROUP, line.stream.number, self._at()))

    def evict(self, member_id: str) -> None:
        """An operator puts a member out."""
        self._handle(Left(GROUP, next(self._numbers), self._at(), member_id, None, permanently=True))

    def _fresh_id(self, name: str) -> str:
        return f"{name}-{next(self._ids)}"

    def _at(self) -> Moment:
        return Moment(self.now_ms, int(self.now_ms))

    def _handle(self, event: Event) -> None:
        for effect in self._shard.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(_, number, message) if number in self._lines:
                self._lines[number].down.append(encode.message(message))
            case CloseStream(_, number) if number in self._lines:
                self._lines.pop(number).down.append(None)
