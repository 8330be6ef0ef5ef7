"""The part of ``headrace.aio.AdminClient`` that says who may do what, and makes API keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headrace._logging_in import NO_LIBRARY, new_exchange
from headrace._passwords import check_password
from headrace._runtime import in_thread
from headrace.admin_access_types import (
    AccessChanged,
    AccessDescription,
    AccessExplanation,
    AccessHolders,
    ApiKeyInfo,
    NewApiKey,
    ObservedAccess,
    UserInfo,
    WhoAmI,
    WhyRefused,
)
from headrace.aio._admin_calls import AdminCalls
from headrace.errors import InvalidConfig, Rejected
from headrace_common.core.secret import Secret
from headrace_proto.v1 import access_pb2 as pb

if TYPE_CHECKING:
    from headrace_common.core.access.changes import Change
    from headrace_common.core.access.grants import Grant

YEAR: Final = timedelta(days=365)
FOR_EVER: Final = -1
NO_SALTS: Final[Mapping[str, tuple[bytes, int]]] = MappingProxyType({})
MECHANISM: Final = "SCRAM-SHA-512"


class AccessAdmin(AdminCalls):
    """Inherited by ``AdminClient``, which brings the calls."""

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
        """
        The mode, rules, roles and blocks: all, or what is said of one principal. It comes page by page: what changes
        meanwhile may be missed.
        """
        request = pb.DescribeAccessRequest(principal=principal or "")
        found = pb.DescribeAccessResponse()
        while True:
            page = await self._call(lambda stub, timeout: stub.DescribeAccess(request, timeout=timeout))
            found.MergeFrom(page)  # lists grow, and the newest mode and generation count
            if not page.next or page.next == request.after:
                found.ClearField("next")
                return AccessDescription.of(found)
            request.after = page.next

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

    async def who_can(self, operation: str, type: str, name: str = "", *, limit: int | None = None) -> AccessHolders:
        """
        Who may do something by the rules: principals, groups, and everyone of a type, as far as the caller may know.

        Args:
            name: of the resource; without one it is the cluster.
            limit: at most so many; None: 1,000.

        Raises:
            Denied: the caller may know of nobody.
        """
        request = pb.WhoCanRequest(operation=operation.upper(), type=type.upper(), name=name, limit=limit or 0)
        return AccessHolders.of(await self._call(lambda stub, timeout: stub.WhoCan(request, timeout=timeout)))

    async def why_refused(self, id: str) -> WhyRefused:
        """
        What was refused to whom, at which nodes, and why. Nodes remember the latest refusals since they were started.

        Args:
            id: as the text of the refusal has it.

        Raises:
            Denied: the caller may know of nobody.
            NotFound: no node remembers it, or the caller may not know of whom it was.
        """
        request = pb.WhyRefusedRequest(id=id)
        return WhyRefused.of(await self._call(lambda stub, timeout: stub.WhyRefused(request, timeout=timeout)))

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

    async def create_user(self, name: str, password: Secret | str) -> None:
        """
        Make ``User:NAME``, who logs in with this password. The password stays here; the cluster keeps verifiers of it.

        Raises:
            Rejected: nobody can be called so, or the password is too short or too common.
            Conflict: there is one of this name.
            Denied: the caller may not: a password is a way to act as that user.
        """
        check_password(_text(password), name)
        verifiers = await in_thread(lambda: _verifiers(_text(password)))
        request = pb.CreateUserRequest(name=name, verifiers=verifiers)
        await self._call(lambda stub, timeout: stub.CreateUser(request, timeout=timeout), change=True)

    async def change_password(self, name: str, password: Secret | str, *, grace: timedelta | None = None) -> None:
        """
        Give a user another password. Sessions and logins that were begun with the old one end.

        Args:
            grace: how long the old one still counts, a week at most; None: it does not.

        Raises:
            NotFound: there is no such user.
            Rejected, Denied: as ``create_user``; everybody may change their own.
        """
        check_password(_text(password), name)
        salts = {}
        if grace:
            for user in await self.list_users(name):
                salts = {one.mechanism: (one.salt, one.iterations) for one in user.wire.parameters}
        verifiers = await in_thread(lambda: _verifiers(_text(password), salts))
        grace_ms = 0 if grace is None else grace // timedelta(milliseconds=1)
        request = pb.ChangePasswordRequest(name=name, verifiers=verifiers, grace_ms=grace_ms)
        await self._call(lambda stub, timeout: stub.ChangePassword(request, timeout=timeout), change=True)

    async def delete_user(self, name: str, *, cascade: bool = False) -> None:
        """
        Take a user away: what is connected with its password is cut off.

        Args:
            cascade: its rules, roles, keys and block go too. Else it is refused while there are any.

        Raises:
            NotFound: there is no such user.
            Conflict: something is said of it.
        """
        request = pb.DeleteUserRequest(name=name, cascade=cascade)
        await self._call(lambda stub, timeout: stub.DeleteUser(request, timeout=timeout), change=True)

    async def list_users(self, name: str | None = None) -> list[UserInfo]:
        """Users with passwords: one, or oneself and those whom the caller may see."""
        request = pb.ListUsersRequest(name=name or "")
        answer = await self._call(lambda stub, timeout: stub.ListUsers(request, timeout=timeout))
        return [UserInfo.of(user) for user in answer.users]

    async def log_in(self, user: str, password: Secret | str) -> NewApiKey:
        """
        A key of 12 hours for who has this password. The client has to be let in too, as with the same ``username`` and
        ``password``.

        Raises:
            Unauthenticated: the name or the password is wrong.
        """
        secret = password if isinstance(password, Secret) else Secret(password)
        exchange = await in_thread(lambda: new_exchange(user, secret, MECHANISM))
        first = pb.LoginRequest(mechanism=MECHANISM, message=exchange.first())
        begun = await self._call(lambda stub, timeout: stub.Login(first, timeout=timeout))
        proof = await in_thread(lambda: exchange.last(begun.message))
        last = pb.LoginRequest(exchange_id=begun.exchange_id, message=proof)
        done = await self._call(lambda stub, timeout: stub.Login(last, timeout=timeout), change=True)
        exchange.check(done.message)
        return NewApiKey.of(done.made)

    async def who_am_i(self) -> WhoAmI:
        """Who the cluster takes this client for."""
        request = pb.WhoAmIRequest()
        return WhoAmI.of(await self._call(lambda stub, timeout: stub.WhoAmI(request, timeout=timeout)))


def _ms(time: timedelta | None) -> int:
    return 0 if time is None else time // timedelta(milliseconds=1)


def _text(password: Secret | str) -> str:
    return password.reveal() if isinstance(password, Secret) else password


def _verifiers(password: str, salts: Mapping[str, tuple[bytes, int]] = NO_SALTS) -> list[pb.ScramVerifier]:
    """What the cluster keeps of a password; with the salts of another one, if they are given."""
    from headrace_common.core.access.scram import ITERATIONS, MECHANISMS, SALT_BYTES, make_verifier
    from headrace_common.runtime.entropy import new_secret

    made = []
    try:
        for mechanism in MECHANISMS:
            salt, iterations = salts.get(mechanism) or (new_secret(SALT_BYTES), ITERATIONS)
            one = make_verifier(mechanism, password, salt, iterations)
            made.append(
                pb.ScramVerifier(
                    mechanism=mechanism,
                    salt=one.salt,
                    iterations=one.iterations,
                    stored_key=one.stored_key,
                    server_key=one.server_key,
                )
            )
    except ImportError:
        raise InvalidConfig(NO_LIBRARY) from None
    return made
