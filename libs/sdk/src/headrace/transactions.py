"""
Prepared transactions: what names one, and the clients that decide them from any process. ``headrace.aio`` has the same
clients for asyncio.

::

    >>> from headrace import PreparedTransaction
    >>> token = PreparedTransaction("billing-1", 7, 3, 0xC0FFEE)
    >>> PreparedTransaction.parse(bytes(token)) == PreparedTransaction.parse(str(token)) == token
    True
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headrace import _runtime
from headrace._descriptors import needing_descriptors
from headrace._tokens import OwnerEpoch, PreparedTransaction
from headrace.errors import ClientClosed

if TYPE_CHECKING:
    from headrace._transport.port import Transport
    from headrace.aio import transactions as aio
    from headrace.setting_types import DecidingSettingsDict

T = TypeVar("T")

__all__ = ["OwnerEpoch", "PreparedTransaction", "PreparedTransactions", "UnitOwner"]


class _Deciding:
    """What both clients have: a twin on the loop that all sync clients share."""

    _kind = "client"

    def __init__(self, twin: aio._Deciding) -> None:
        self._base = twin
        self._thread = _runtime.loop_thread()
        self._abandoned = False
        _runtime.enroll(self)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if not self._abandoned:
            _runtime.dismiss(self)
            self._thread.call(self._base.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _abandon(self) -> None:
        self._abandoned = True

    def _close_at_exit(self, timeout: float) -> None:
        """Nothing is lost with the process: what was not answered can be asked again."""

    def _wait(self, coro: Coroutine[Any, Any, T]) -> T:
        if self._abandoned:
            coro.close()
            raise ClientClosed.by_fork(self._kind)
        return self._thread.call(coro)


class PreparedTransactions(_Deciding):
    """
    Decides prepared transactions by their tokens, from any process and thread.

    Args:
        bootstrap_servers: as for ``Producer``.
        settings: see ``headrace.settings.DecidingSettings``.

    ::

        >>> from headrace import PreparedTransactions, Producer
        >>> with Producer(bootstrap, transactional_id="billing-1") as producer:
        ...     producer.begin_transaction()
        ...     _ = producer.send("flights", b"UA 1545 departed")
        ...     token = str(producer.prepare_transaction())         # durable, and not visible yet
        >>> with PreparedTransactions(bootstrap) as prepared:       # perhaps another process, days later
        ...     prepared.commit_prepared(token)
    """

    _kind = "PreparedTransactions"

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        _transport: Transport | None = None,
        **settings: Unpack[DecidingSettingsDict],
    ) -> None:
        with needing_descriptors():
            from headrace.aio.transactions import PreparedTransactions as Twin

        self._twin: aio.PreparedTransactions = Twin(bootstrap_servers, _transport=_transport, **settings)
        super().__init__(self._twin)

    def commit_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Commit; again: nothing happens.

        Raises:
            AlreadyDecided: it was aborted before.
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
            WaitTimedOut: nobody answered within ``default_api_timeout_ms``: make the same call again.
        """
        self._wait(self._twin.commit_prepared(token))

    def abort_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Abort; again: nothing happens.

        Raises:
            AlreadyDecided: it was committed before.
            TxnVerdictUnknown, WaitTimedOut: as ``commit_prepared``.
        """
        self._wait(self._twin.abort_prepared(token))


class UnitOwner(_Deciding):
    """
    Commits prepared transactions of many producers as one: all of a unit become visible, or none.

    Its producers have the transactional ids ``owner/suffix`` and the ``owner_epoch`` that ``init`` gave.

    Args:
        bootstrap_servers: as for ``Producer``.
        owner: 1 to 200 characters without "/".
        epoch: what ``init`` gave this owner in another process; None: call ``init`` first.
        settings: see ``headrace.settings.DecidingSettings``.

    ::

        >>> from headrace import Producer, UnitOwner
        >>> def work(number, epoch):
        ...     with Producer(bootstrap, transactional_id=f"nightly/{number}", owner_epoch=epoch) as producer:
        ...         producer.begin_transaction()
        ...         _ = producer.send("flights", f"part {number}")
        ...         return producer.prepare_transaction()
        >>> with UnitOwner(bootstrap, "nightly") as owner:
        ...     epoch, last_sequence = owner.init()
        ...     tokens = [work(number, epoch) for number in range(3)]
        ...     owner.commit(last_sequence + 1, tokens)
        True
    """

    _kind = "UnitOwner"

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None,
        owner: str,
        *,
        epoch: int | None = None,
        _transport: Transport | None = None,
        **settings: Unpack[DecidingSettingsDict],
    ) -> None:
        with needing_descriptors():
            from headrace.aio.transactions import UnitOwner as Twin

        self._twin: aio.UnitOwner = Twin(bootstrap_servers, owner, epoch=epoch, _transport=_transport, **settings)
        super().__init__(self._twin)

    @property
    def owner(self) -> str:
        """What its transactional ids begin with."""
        return self._twin.owner

    @property
    def epoch(self) -> int | None:
        """For the producers' ``owner_epoch``; None before ``init``."""
        return self._twin.epoch

    def init(self, claim: int | None = None) -> OwnerEpoch:
        """
        Become the owner: earlier ones and their producers are fenced, what they left undecided is aborted.

        Args:
            claim: for several processes that are one owner together, from 0. All that come with the same number get the
                same epoch, and only the first of them aborts anything; a later owner comes with a higher one. None: a
                new owner in any case, and no claim that was made before reaches it any more.

        Returns:
            The epoch, and the last unit that was committed: what a restarted owner goes on from.

        Raises:
            FencedOwner: a higher claim was made, or, since this one was, somebody became the owner without one.
            WaitTimedOut: nobody answered: make the same call again.
        """
        return self._wait(self._twin.init(claim))

    def commit(self, sequence: int, tokens: Iterable[PreparedTransaction | str | bytes]) -> bool:
        """
        Commit these together, and abort what else is prepared of this owner.

        Args:
            sequence: names the unit, from 0, growing. The same again is answered as before.
            tokens: what producers got from ``prepare_transaction``; at most 10,000.

        Returns:
            Whether it was committed now; false: this sequence had been committed before.

        Raises:
            TransactionAbortable: one of them is not prepared any more; nothing was committed.
            FencedOwner: a newer owner is there, or committed a later unit.
            WaitTimedOut: nobody answered: make the same call again.
        """
        return self._wait(self._twin.commit(sequence, tokens))
