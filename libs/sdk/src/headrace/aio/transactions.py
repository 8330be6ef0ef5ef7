"""
Clients that decide prepared transactions, for asyncio. ``headrace.transactions`` has their twins for threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from headrace._descriptors import needing_descriptors
from headrace._tokens import OwnerEpoch, PreparedTransaction
from headrace._transport.port import CoordinatorCall, Transport
from headrace.aio._coordinators import CoordinatorLink
from headrace.aio._transactions import check_verdict
from headrace.errors import ClientClosed, InvalidTxnState, Rejected, Then, WaitTimedOut
from headrace.settings import DecidingSettings, read_settings, waits_as_told
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from headrace.setting_types import DecidingSettingsDict

A = TypeVar("A")

LINKS_MAX: Final = 1_000
"""Transactional ids of which the coordinator is remembered."""

TOKENS_MAX: Final = 10_000
"""Prepared transactions in one unit."""

OWNER_LENGTH_MAX: Final = 200

NUMBER_MAX: Final = 2**63 - 1
"""Of units, of owners' epochs, and of their claims."""


class _Deciding:
    """What both clients have: a transport, and a way to each coordinator."""

    _kind = "client"

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        _transport: Transport | None = None,
        **settings: Unpack[DecidingSettingsDict],
    ) -> None:
        self._settings = read_settings(DecidingSettings, settings)
        if _transport is None:
            with needing_descriptors():
                from headrace._transport.grpc import GrpcTransport

            _transport = GrpcTransport(
                self._settings.find(bootstrap_servers), patient=waits_as_told("default_api_timeout_ms", settings)
            )
        self._transport = _transport
        self._clock = SystemClock()
        self._links: dict[str, CoordinatorLink] = {}
        self._closed = False
        self._pid = os.getpid()

    async def _ask(self, what: str, key: str, attempt: CoordinatorCall[A]) -> A:
        if self._closed:
            raise ClientClosed(f"the {self._kind} is closed; make a new one")
        if self._pid != os.getpid():
            raise ClientClosed.by_fork(self._kind)
        deadline_ms = self._clock.monotonic_ms() + self._settings.default_api_timeout_ms
        try:
            return await self._link(key).ask(what, attempt, deadline_ms)
        except WaitTimedOut as error:
            error.then = Then.RETRY
            raise

    def _link(self, key: str) -> CoordinatorLink:
        link = self._links.pop(key, None)
        if link is None:
            transport = self._transport
            link = CoordinatorLink(
                lambda: transport.find_coordinator(key, broker_pb2.TRANSACTION), self._settings, self._clock
            )
        self._links[key] = link
        if len(self._links) > LINKS_MAX:
            del self._links[next(iter(self._links))]
        return link

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class PreparedTransactions(_Deciding):
    """
    Decides prepared transactions by their tokens, from any process.

    Args:
        bootstrap_servers: as for ``Producer``.
        settings: see ``headrace.settings.DecidingSettings``.
    """

    _kind = "PreparedTransactions"

    async def commit_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Commit; again: nothing happens.

        Raises:
            AlreadyDecided: it was aborted before.
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
            WaitTimedOut: nobody answered within ``default_api_timeout_ms``: make the same call again.
        """
        await self._decide(token, commit=True)

    async def abort_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Abort; again: nothing happens.

        Raises:
            AlreadyDecided: it was committed before.
            TxnVerdictUnknown, WaitTimedOut: as ``commit_prepared``.
        """
        await self._decide(token, commit=False)

    async def _decide(self, given: PreparedTransaction | str | bytes, *, commit: bool) -> None:
        token = PreparedTransaction.parse(given)
        request = pb.DecidePreparedRequest(token=token.message(), commit=commit)

        attempt = self._transport.transaction_call(lambda stub: stub.DecidePrepared, request)
        what = f"deciding a prepared transaction of {token.transactional_id!r}"
        check_verdict(await self._ask(what, token.transactional_id, attempt), commit=commit)


class UnitOwner(_Deciding):
    """
    Commits prepared transactions of many producers as one: all of a unit become visible, or none.

    Its producers have the transactional ids ``owner/suffix`` and the ``owner_epoch`` that ``init`` gave.

    Args:
        bootstrap_servers: as for ``Producer``.
        owner: 1 to 200 characters without "/".
        epoch: what ``init`` gave this owner in another process; None: call ``init`` first.
        settings: see ``headrace.settings.DecidingSettings``.
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
        if not isinstance(owner, str) or not 1 <= len(owner) <= OWNER_LENGTH_MAX or "/" in owner:
            raise Rejected(f"an owner is a text of 1 to {OWNER_LENGTH_MAX} characters without '/', not {owner!r}")
        if epoch is not None and (not isinstance(epoch, int) or not 0 <= epoch <= NUMBER_MAX):
            raise Rejected(f"an owner's epoch is what init() returned, 0 to {NUMBER_MAX}, not {epoch!r}")
        super().__init__(bootstrap_servers, _transport=_transport, **settings)
        self.owner = owner
        self.epoch = epoch
        """For the producers' ``owner_epoch``; None before ``init``."""

    async def init(self, claim: int | None = None) -> OwnerEpoch:
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
        if claim is not None and (not isinstance(claim, int) or not 0 <= claim <= NUMBER_MAX):
            raise Rejected(f"an owner is claimed with a number of 0 to {NUMBER_MAX}, not {claim!r}")
        request = pb.InitOwnerRequest(owner=self.owner, claim=claim)

        attempt = self._transport.transaction_call(lambda stub: stub.InitOwner, request)
        answer = await self._ask(f"becoming owner {self.owner!r}", self.owner, attempt)
        self.epoch = answer.owner_epoch
        return OwnerEpoch(answer.owner_epoch, answer.last_sequence)

    async def commit(self, sequence: int, tokens: Iterable[PreparedTransaction | str | bytes]) -> bool:
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
        if self.epoch is None:
            error = InvalidTxnState("call init() first, or give the epoch that it returned in another process")
            error.then = Then.FENCED
            raise error
        if not isinstance(sequence, int) or not 0 <= sequence <= NUMBER_MAX:
            raise Rejected(f"units are numbered from 0 to {NUMBER_MAX}, not {sequence!r}")
        listed = [PreparedTransaction.parse(token).message() for token in tokens]
        if len(listed) > TOKENS_MAX:
            raise Rejected(f"a unit has at most {TOKENS_MAX} prepared transactions, not {len(listed)}")
        request = pb.CommitUnitRequest(owner=self.owner, owner_epoch=self.epoch, sequence=sequence, tokens=listed)

        attempt = self._transport.transaction_call(lambda stub: stub.CommitUnit, request)
        answer = await self._ask(f"unit {sequence} of owner {self.owner!r}", self.owner, attempt)
        return not answer.repeated_sequence


__all__ = ["OwnerEpoch", "PreparedTransaction", "PreparedTransactions", "UnitOwner"]
