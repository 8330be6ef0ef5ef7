"""
The fencing token of one lane: what its batches carry, and what a refused token means.

``lane`` asks; a lane that was never fenced has none of this. Tokens only grow, in a log and here: who has set a higher
one has taken over.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import FencedWriter, HeadraceError, Rejected
from headrace_common.core.batch import FENCING_TOKEN_MAX
from headrace_common.core.image import INTERNAL_TOPICS

NO_TOKEN: Final = 0
"""What a leader tells that has none."""


class Fencing:
    """
    One lane's. While ``closed`` says why, nothing is written: the writer does not hold the partition, or is not sure.
    """

    __slots__ = ("_asked", "_epoch", "_where", "closed", "token")

    def __init__(self, where: str) -> None:
        self._where = where
        self._asked = NO_TOKEN
        """The highest that was asked for."""
        self._epoch = -1
        """The leader epoch under which ``token`` was set."""
        self.token: int | None = None
        """The last that was set."""
        self.closed: HeadraceError | None = None

    def ask(self, token: int) -> None:
        """``token`` is to be set in its turn. Raises: ``Rejected``: a higher one was asked for before."""
        if token < self._asked:
            raise Rejected(
                f"{self._where}: this producer has asked for fencing token {self._asked} before; tokens only grow, so "
                f"{token} can never be set"
            )
        self._asked = token

    def was_set(self, token: int, leader_epoch: int) -> None:
        """It is committed."""
        self.token, self._epoch, self.closed = token, leader_epoch, None

    def was_not_set(self, token: int, error: HeadraceError) -> None:
        """The fence has failed: what was sent behind it must not be written under another token, or none."""
        if not isinstance(error, FencedWriter):
            error = FencedWriter(
                f"{self._where}: fencing token {token} was asked for, and may not be set ({error}); nothing is written "
                "until a call of fence() succeeds: the same token may be given again"
            )
        self.closed = error

    def explain_refusal(self, error: HeadraceError, mine: int, told: int, leader_epoch: int) -> HeadraceError | None:
        """
        Why this writer has lost the partition. None: it has not, and asks again: the leader does not know of its
        token, as it was deposed before that was set.

        Args:
            error: what the leader of ``leader_epoch`` says of token ``mine``.
            told: the token that it has.
        """
        if told > mine:
            return FencedWriter(
                f"{error}: token {told} is another writer's, which has taken over; stop, or take over from it: call "
                "fence() with a higher token"
            )
        if mine == told or mine != self.token or leader_epoch < self._epoch:
            return None
        return FencedWriter(
            f"{error}: token {mine} was set, and the log does not have it any more, nor perhaps records behind it: the "
            "topic was made anew, or a replica that had lost them was elected; look what is there, then call fence() "
            "again"
        )


def explain_missing(error: HeadraceError, topic: str, partition: int) -> HeadraceError:
    """The topic takes no batch without a token, and this producer has set none."""
    return FencedWriter(f"{error}; call fence({topic!r}, {partition}, token) of this producer first")


def check_fence(topic: str, token: object, acks: int) -> None:
    """Raises: ``Rejected``: no producer with these ``acks`` can set ``token`` on a partition of the topic."""
    if acks == 0:
        raise Rejected("with acks=0 nobody tells a producer that another has taken over; fence with acks='all' or 1")
    if topic in INTERNAL_TOPICS.values():
        raise Rejected(f"topic {topic} is the system's: coordinators alone fence it and write to it")
    if not isinstance(token, int) or isinstance(token, bool) or not 1 <= token <= FENCING_TOKEN_MAX:
        raise Rejected(f"a fencing token is a number from 1 to {FENCING_TOKEN_MAX}, not {token!r}")
