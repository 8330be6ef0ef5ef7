"""``/v1/access``, ``/v1/keys``, ``/v1/quotas``, ``/v1/whoami``: who may do what, how much, by which keys; who asks."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Response, status
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from pydantic import BaseModel

from headrace_admin.core.access_pages import PAGE_MAX
from headrace_admin.engine.accesses import HOLDERS_MAX, Accesses
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.observations import Observations
from headrace_admin.rpc import access_out as out
from headrace_admin.rpc import answer_types, observed_out
from headrace_admin.rpc import models_access as shapes
from headrace_common.core.access.observed import DAY_MS, OBSERVED_MAX
from headrace_common.core.errors import Rejected
from headrace_common.rpc.json_form import json_of
from headrace_common.runtime.access_gate import current_rights, current_shown
from headrace_proto.v1 import access_pb2 as pb

M = TypeVar("M", bound=Message)

UserName = Annotated[str, Path(max_length=255)]
Text = Annotated[str, Query(max_length=300)]


def access_routes(accesses: Accesses, observations: Observations, engine: Administration) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["access"])
    _rules(routes, accesses, observations, engine)
    _keys(routes, accesses, engine)
    _users(routes, accesses, engine)

    _quotas(routes, accesses, engine)

    @routes.get("/whoami", operation_id="who_am_i")
    async def who_am_i() -> answer_types.WhoAmI:
        """Who asks, as the cluster sees it."""
        return json_of(out.who_am_i(accesses, current_shown()))

    return routes


def _rules(routes: APIRouter, accesses: Accesses, observations: Observations, engine: Administration) -> None:
    @routes.get("/access", operation_id="describe_access")
    async def describe_access(
        principal: Annotated[str, Query(max_length=300, description="Only what is said of it. Empty: of all.")] = "",
        limit: Annotated[int, Query(ge=0, le=PAGE_MAX, description="Entries on a page, about. 0: 1,000.")] = 0,
        after: Annotated[str, Query(max_length=4_000, description="The `next` of the page before.")] = "",
    ) -> answer_types.Access:
        """A page of rules, bindings, roles and blocks, as far as the caller may know of them."""
        described = accesses.describe(current_rights(), principal, limit=limit, after=after)
        return json_of(out.described_message(described))

    @routes.post("/access/changes", operation_id="change_access")
    async def change_access(body: shapes.ChangeAccess) -> answer_types.AccessChanged:
        """Change who may do what, or say what would change; all of it or nothing."""
        if not all(change.one for change in body.changes):
            raise Rejected("each change has exactly one of rule, binding, role and block")
        request = ParseDict(body.model_dump(exclude_none=True), pb.AlterAccessRequest())
        return json_of(await observed_out.altered(observations, engine.controllers, request, current_rights()))

    @routes.get("/access/observed", operation_id="observed_access")
    async def observed_access(
        within_ms: Annotated[int, Query(ge=0, le=DAY_MS, description="Only what was seen so lately. 0: a day.")] = 0,
        limit: Annotated[int, Query(ge=0, le=OBSERVED_MAX, description="Of each kind, the latest. 0: 1,000.")] = 0,
    ) -> answer_types.ObservedAccess:
        """Who comes without a credential, what a closed cluster would refuse, and which rights are used."""
        request = pb.ObservedRequest(within_ms=within_ms, limit=limit)
        return json_of(await observed_out.observed(observations, request, current_rights()))

    @routes.get("/access/explain", operation_id="explain_access")
    async def explain_access(
        principal: Text,
        operation: Text,
        type: Text,
        name: Annotated[str, Query(max_length=300, description="Ignored of CLUSTER.")] = "",
        host: Annotated[str, Query(max_length=100, description="The address it calls from. Empty: any.")] = "",
    ) -> answer_types.Explained:
        """Whether somebody may do something by the rules, why, and what would allow it."""
        request = pb.ExplainAccessRequest(principal=principal, operation=operation, type=type, name=name, host=host)
        return json_of(out.explained(accesses, request))

    @routes.get("/access/who-can", operation_id="who_can")
    async def who_can(
        operation: Text,
        type: Text,
        name: Annotated[str, Query(max_length=300, description="Ignored of CLUSTER.")] = "",
        limit: Annotated[int, Query(ge=0, le=HOLDERS_MAX, description="At most so many. 0: 1,000.")] = 0,
    ) -> answer_types.Holders:
        """Who may do something by the rules: principals, groups, and everyone of a type."""
        request = pb.WhoCanRequest(operation=operation, type=type, name=name, limit=limit)
        return json_of(out.holders(accesses, current_rights(), request))

    @routes.get("/access/refusals/{id}", operation_id="why_refused")
    async def why_refused(id: Annotated[str, Path(max_length=100)]) -> answer_types.WhyRefused:
        """What was refused to whom, at which nodes, and why; by the id in the text of the refusal."""
        return json_of(await observed_out.why_refused(observations, id, current_rights()))


def _quotas(routes: APIRouter, accesses: Accesses, engine: Administration) -> None:
    @routes.get("/quotas", operation_id="describe_quotas")
    async def describe_quotas(
        entity: Annotated[str, Query(max_length=2_000, description="Only what is set for it. Empty: for all.")] = "",
    ) -> answer_types.Quotas:
        """What is set of quotas: how fast clients may be, and how many topics there may be."""
        return json_of(out.quotas_message(accesses.quotas(entity)))

    @routes.post("/quotas/changes", operation_id="change_quotas", status_code=status.HTTP_204_NO_CONTENT)
    async def change_quotas(body: shapes.ChangeQuotas) -> None:
        """Set quotas or take them away; all of it or nothing."""
        request = ParseDict(body.model_dump(exclude_none=True), pb.AlterQuotasRequest())
        await engine.controllers.ask(lambda stub: stub.AlterQuotas, request)


def _keys(routes: APIRouter, accesses: Accesses, engine: Administration) -> None:
    @routes.get("/keys", operation_id="list_keys")
    async def list_keys(
        owner: Annotated[str, Query(max_length=300, description="Only its keys. Empty: all that may be seen.")] = "",
    ) -> answer_types.Keys:
        """API keys, without their secrets: one's own, and those of others if one may see them."""
        return json_of(out.keys_message(accesses.keys(current_rights(), owner)))

    @routes.post("/keys", operation_id="create_key", status_code=status.HTTP_201_CREATED)
    async def create_key(body: shapes.CreateKey, response: Response) -> answer_types.NewKey:
        """Make an API key. It is in this answer alone: nobody keeps it."""
        request = ParseDict(body.model_dump(), pb.CreateKeyRequest())
        response.headers["cache-control"] = "no-store"
        return json_of(await engine.controllers.ask(lambda stub: stub.CreateKey, request))

    @routes.delete("/keys/{id}", operation_id="delete_key", status_code=status.HTTP_204_NO_CONTENT)
    async def delete_key(id: Annotated[str, Path(max_length=100)]) -> None:
        """Delete an API key: from now on nobody calls with it."""
        await engine.controllers.ask(lambda stub: stub.DeleteKeys, pb.DeleteKeysRequest(ids=[id]))


def _users(routes: APIRouter, accesses: Accesses, engine: Administration) -> None:
    @routes.get("/users", operation_id="list_users")
    async def list_users() -> answer_types.Users:
        """Users with passwords: oneself, and those whom one may see."""
        return json_of(out.users_message(accesses.users(current_rights())))

    @routes.post("/users", operation_id="create_user", status_code=status.HTTP_204_NO_CONTENT)
    async def create_user(body: shapes.CreateUser) -> None:
        """Make a user with a password, of which only verifiers come here."""
        await engine.controllers.ask(lambda stub: stub.CreateUser, _parsed(body, pb.CreateUserRequest()))

    @routes.put("/users/{name}/password", operation_id="change_password", status_code=status.HTTP_204_NO_CONTENT)
    async def change_password(name: UserName, body: shapes.ChangePassword) -> None:
        """Give a user another password. Sessions and logins with the one of before end when it does."""
        request = _parsed(body, pb.ChangePasswordRequest(name=name))
        await engine.controllers.ask(lambda stub: stub.ChangePassword, request)

    @routes.delete("/users/{name}", operation_id="delete_user", status_code=status.HTTP_204_NO_CONTENT)
    async def delete_user(
        name: UserName,
        cascade: Annotated[bool, Query(description="Its rules, roles, keys and block go with it.")] = False,
    ) -> None:
        """Take a user away. While anything is said of it this is refused, unless that goes too."""
        request = pb.DeleteUserRequest(name=name, cascade=cascade)
        await engine.controllers.ask(lambda stub: stub.DeleteUser, request)


def _parsed(body: BaseModel, request: M) -> M:
    """
    The message of the wire.

    Raises:
        Rejected: what should be base64 is not.
    """
    try:
        return ParseDict(body.model_dump(), request)
    except ParseError as error:
        raise Rejected(f"the request cannot be read: {error}") from None
