"""The part of ``headrace.aio.AdminClient`` that says who may do what, and makes API keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.admin_access_types import (
    AccessChanged,
    AccessDescription,
    AccessExplanation,
    ApiKeyInfo,
    NewApiKey,
    ObservedAccess,
    WhoAmI,
)
from headrace.errors import Rejected
from headrace_proto.v1 import access_pb2 as pb

if TYPE_CHECKING:
    from headrace_common.core.access.changes import Change
    from headrace_common.core.access.grants import Grant

T = TypeVar("T")

YEAR: Final = timedelta(days=365)
FOR_EVER: Final = -1


class AccessAdmin:
    """Inherited by ``AdminClient``, which brings the calls."""

    async def _call(self, ask: Callable[[Any, float], Awaitable[T]], *, change: bool = False) -> T:
        raise NotImplementedError

    async def alter_access(
        self,
        changes: Iterable[Change] = (),
        *,
        mode: str | None = None,
        validate_only: bool = False,
        within: timedelta | None = None,
        accept_loss_of: Iterable[str] = (),
        accept_loss: bool = False,
    ) -> AccessChanged:
        """
        Change who may do what: all of it, or nothing. ``headrace.access`` makes the changes.

        Args:
            mode: ``"permissive"`` or ``"closed"``: the cluster's from then on. It never falls.
            validate_only: only say what would change.
            within: with ``"closed"``, how far back is looked at who would be refused from then on; None: a day.
            accept_loss_of: principals and addresses that may be.
            accept_loss: whoever it is may be.

        Returns:
            Who gains and loses what.

        Raises:
            Denied: the caller may not change this, or would give more than it has.
            Rejected, NotFound, Conflict: something of it cannot be, is not there, or is bound; or closing the cluster
                would cut off somebody (``observed_access``).
        """
        from headrace_common.rpc.convert_access import change_to_proto

        request = pb.AlterAccessRequest(
            changes=map(change_to_proto, changes),
            validate_only=validate_only,
            mode=mode or "",
            within_ms=_ms(within),
            accept_loss_of=accept_loss_of,
            accept_loss=accept_loss,
        )
        return AccessChanged.of(
            await self._call(lambda stub, timeout: stub.AlterAccess(request, timeout=timeout), change=True)
        )

    async def describe_access(self, principal: str | None = None) -> AccessDescription:
        """The mode, rules, roles and blocks: all, or what is said of one principal."""
        request = pb.DescribeAccessRequest(principal=principal or "")
        return AccessDescription.of(
            await self._call(lambda stub, timeout: stub.DescribeAccess(request, timeout=timeout))
        )

    async def explain_access(
        self, principal: str, operation: str, type: str, name: str = "", *, host: str | None = None
    ) -> AccessExplanation:
        """
        Whether ``principal`` may do something, why, and what would allow it.

        Args:
            name: of the resource; without one it is the cluster.
            host: the address that it calls from; None: one that no rule names.
        """
        request = pb.ExplainAccessRequest(
            principal=principal, operation=operation.upper(), type=type.upper(), name=name, host=host or ""
        )
        return AccessExplanation.of(
            await self._call(lambda stub, timeout: stub.ExplainAccess(request, timeout=timeout))
        )

    async def observed_access(self, *, within: timedelta | None = None, limit: int | None = None) -> ObservedAccess:
        """
        Who comes without a credential, what a closed cluster would refuse, and which rights are used: what all nodes
        have seen since they were started, where the cluster is not open.

        Args:
            within: only what was seen so lately; None: a day, which is the most.
            limit: of each kind, the latest; None: 1,000.
        """
        request = pb.ObservedRequest(within_ms=_ms(within), limit=limit or 0)
        return ObservedAccess.of(await self._call(lambda stub, timeout: stub.Observed(request, timeout=timeout)))

    async def create_key(
        self,
        owner: str | None = None,
        *,
        lifetime: timedelta | None = YEAR,
        scope: Iterable[Grant] = (),
        note: str = "",
    ) -> NewApiKey:
        """
        Make an API key. Its secret is in the answer, and nowhere else.

        Args:
            owner: who calls with it; None: the caller itself.
            lifetime: None: for ever.
            scope: what it may be used for at most (``headrace.access.grant``); none: all that its owner may do.
            note: what for.

        Raises:
            Denied: the caller may make no key of this owner.
        """
        from headrace_common.rpc.convert_access import grant_to_proto

        lifetime_ms = FOR_EVER if lifetime is None else lifetime // timedelta(milliseconds=1)
        if lifetime is not None and lifetime_ms <= 0:
            raise Rejected("a key lasts for some time: lifetime is above 0, or None for ever")
        request = pb.CreateKeyRequest(
            owner=owner or "", lifetime_ms=lifetime_ms, scope=map(grant_to_proto, scope), note=note
        )
        return NewApiKey.of(
            await self._call(lambda stub, timeout: stub.CreateKey(request, timeout=timeout), change=True)
        )

    async def list_keys(self, owner: str | None = None) -> list[ApiKeyInfo]:
        """The keys of one principal, or of all whose keys the caller may see."""
        request = pb.ListKeysRequest(owner=owner or "")
        answer = await self._call(lambda stub, timeout: stub.ListKeys(request, timeout=timeout))
        return [ApiKeyInfo.of(key) for key in answer.keys]

    async def delete_keys(self, ids: Iterable[str]) -> None:
        """
        Take keys back: what is connected with one is cut off.

        Raises:
            NotFound: there is none of such an id; nothing was deleted.
        """
        request = pb.DeleteKeysRequest(ids=ids)
        await self._call(lambda stub, timeout: stub.DeleteKeys(request, timeout=timeout), change=True)

    async def alter_quotas(
        self, changes: Mapping[str, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """
        Set quotas, or take them away: all of them, or nothing.

        Args:
            changes: for each entity, such as ``"users/User:alice"``, ``"users/*"`` or ``"prefixes/orders."``, values by
                the names of quotas; None takes one away.
            validate_only: only see whether it can be done.

        Raises:
            Denied: the caller may not alter the configs of the cluster.
            Rejected: there is no such entity or quota, or it does not take its value.
        """
        request = pb.AlterQuotasRequest(
            changes=[
                pb.QuotaSetting(entity=entity, name=name, value=value)
                for entity, values in changes.items()
                for name, value in values.items()
            ],
            validate_only=validate_only,
        )
        await self._call(lambda stub, timeout: stub.AlterQuotas(request, timeout=timeout), change=True)

    async def describe_quotas(self, entity: str | None = None) -> dict[str, dict[str, float]]:
        """What is set for one entity, or for all: values by the names of quotas, by entity."""
        request = pb.DescribeQuotasRequest(entity=entity or "")
        answer = await self._call(lambda stub, timeout: stub.DescribeQuotas(request, timeout=timeout))
        found: dict[str, dict[str, float]] = {}
        for one in answer.quotas:
            found.setdefault(one.entity, {})[one.name] = one.value
        return found

    async def who_am_i(self) -> WhoAmI:
        """Who the cluster takes this client for."""
        request = pb.WhoAmIRequest()
        return WhoAmI.of(await self._call(lambda stub, timeout: stub.WhoAmI(request, timeout=timeout)))


def _ms(time: timedelta | None) -> int:
    return 0 if time is None else time // timedelta(milliseconds=1)
