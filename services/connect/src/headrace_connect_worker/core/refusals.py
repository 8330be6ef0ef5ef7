"""Why a command is not carried out, as Kafka Connect's REST interface says it. Nothing was written then."""

from __future__ import annotations

from typing import ClassVar

from headrace_common.core.errors import ErrorCode


class Refusal(Exception):
    """A command that is not carried out; ``status`` is that of HTTP, the text is for people."""

    status: ClassVar[int] = 500
    code: ClassVar[ErrorCode | None] = None
    """Below ``/v1``; None: what ``status`` stands for."""


class BadCommand(Refusal):
    """It is wrong, or not possible in this state: the same again is refused until something else changes."""

    status = 400


class NoSuchConnector(Refusal):
    """There is no connector, or no task, of this name."""

    status = 404


class NoSuchVerification(Refusal):
    """There is no verification of this id, or no more."""

    status = 404


class Conflict(Refusal):
    """It exists already, or a change is just being placed: the same again may be carried out."""

    status = 409


class NotLeader(Conflict):
    """Another worker writes the configuration; ``url`` is where it answers, None: nobody leads for now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE

    def __init__(self, url: str | None) -> None:
        super().__init__(
            f"the leader is at {url}" if url else "no worker leads for now; one takes over within seconds, ask again"
        )
        self.url = url


class NotWritten(Refusal):
    """The cluster did not take it in time. With ``unknown`` it may have: look before it is said again."""

    status = 500

    def __init__(self, text: str, *, unknown: bool) -> None:
        super().__init__(text)
        self.unknown = unknown
