"""Which stream belongs to which member of a group; both kinds of group keep one of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Taken(NamedTuple):
    """What came of a member's speaking over a stream."""

    speaks: bool
    """It may; else it has a newer stream."""
    fresh: bool = False
    """It had not spoken over this one before."""
    closes: int | None = None
    """The stream to close: the one it had before, or this one when it may not speak."""
    orphan: str | None = None
    """The member that had this stream, and has none now."""


@dataclass(slots=True)
class Streams:
    """One stream per member and one member per stream. A later stream has a higher number."""

    _of_member: dict[str, int] = field(default_factory=dict)
    _of_stream: dict[int, str] = field(default_factory=dict)

    def of(self, member_id: str) -> int | None:
        """The member's stream, if it has one."""
        return self._of_member.get(member_id)

    def member(self, stream: int) -> str | None:
        """Whose stream that is."""
        return self._of_stream.get(stream)

    def take(self, member_id: str, stream: int) -> Taken:
        """From now on this is the member's stream; whoever had it and what the member had before are separated."""
        present = self._of_member.get(member_id)
        if present == stream:
            return Taken(speaks=True)
        if present is not None and present > stream:
            return Taken(speaks=False, closes=stream)
        taken = Taken(speaks=True, fresh=True, closes=self.drop(member_id), orphan=self.end(stream))
        self._of_member[member_id] = stream
        self._of_stream[stream] = member_id
        return taken

    def drop(self, member_id: str) -> int | None:
        """The member has none any more; returns the one it had."""
        stream = self._of_member.pop(member_id, None)
        if stream is not None:
            del self._of_stream[stream]
        return stream

    def end(self, stream: int) -> str | None:
        """The stream is nobody's any more; returns whose it was."""
        member_id = self._of_stream.pop(stream, None)
        if member_id is not None:
            del self._of_member[member_id]
        return member_id
