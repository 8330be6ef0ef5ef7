"""What is known of access, as messages of the wire, and requests about it as the engine takes them."""

from __future__ import annotations

from headrace_admin.engine.accesses import Accesses, Described, ListedKey, ListedUser
from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.control import Rights
from headrace_common.core.access.explain import Explanation, Holder, describe_source
from headrace_common.core.access.grants import host_of
from headrace_common.core.quotas.entities import Entity
from headrace_common.core.quotas.kinds import Quota
from headrace_common.rpc.convert_access import (
    binding_to_proto,
    key_to_proto,
    operation_of,
    role_to_proto,
    rule_to_proto,
    type_of,
)
from headrace_common.rpc.convert_quotas import quotas_to_proto
from headrace_proto.v1 import access_pb2 as pb


def described_message(described: Described) -> pb.DescribeAccessResponse:
    return pb.DescribeAccessResponse(
        mode=described.mode.name.lower(),
        generation=described.generation,
        rules=map(rule_to_proto, described.rules),
        bindings=map(binding_to_proto, described.bindings),
        roles=map(role_to_proto, described.roles),
        blocked=map(str, described.blocked),
        super_users=map(str, described.super_users),
        faults=described.faults,
        next=described.next,
    )


def keys_message(keys: list[ListedKey]) -> pb.ListKeysResponse:
    return pb.ListKeysResponse(keys=[key_to_proto(one.key, configured=one.configured) for one in keys])


def quotas_message(quotas: list[tuple[Entity, Quota, float]]) -> pb.DescribeQuotasResponse:
    return pb.DescribeQuotasResponse(quotas=quotas_to_proto(quotas))


def users_message(users: list[ListedUser]) -> pb.ListUsersResponse:
    return pb.ListUsersResponse(users=map(_user, users))


def _user(listed: ListedUser) -> pb.UserDescription:
    user = listed.user
    return pb.UserDescription(
        name=user.name,
        created_ms=user.created_ms,
        password_set_ms=user.password.set_ms,
        old_password_until_ms=None if user.old is None else user.old_until_ms,
        parameters=[
            pb.ScramParameters(mechanism=one.mechanism, salt=one.salt, iterations=one.iterations)
            for one in user.password.verifiers
        ],
        blocked=listed.blocked,
    )


def explained(accesses: Accesses, request: pb.ExplainAccessRequest) -> pb.ExplainAccessResponse:
    """
    The answer.

    Raises:
        Rejected: there is no such principal, operation, type or host.
    """
    explanation = accesses.explain(
        request.principal,
        operation_of(request.operation),
        type_of(request.type),
        request.name,
        host_of(request.host) if request.host else None,
    )
    return _explanation_message(explanation)


def _explanation_message(explanation: Explanation) -> pb.ExplainAccessResponse:
    return pb.ExplainAccessResponse(
        allowed=explanation.allowed,
        reason=explanation.reason.value,
        sources=map(describe_source, explanation.sources),
        remedy=explanation.line or "",
    )


def holders(accesses: Accesses, rights: Rights, request: pb.WhoCanRequest) -> pb.WhoCanResponse:
    """
    The answer, of those of whom the caller may know.

    Raises:
        Rejected: there is no such operation or type, or too many are asked for.
    """
    found = accesses.who_can(
        rights, operation_of(request.operation), type_of(request.type), request.name, request.limit
    )
    return pb.WhoCanResponse(holders=map(_holder, found.holders), more=found.more)


def _holder(holder: Holder) -> pb.AccessHolder:
    return pb.AccessHolder(
        principal=str(holder.grantee),
        allowed=holder.allowed,
        reason=holder.reason.name.lower(),
        anywhere=holder.anywhere,
        hosts=holder.hosts,
        sources=map(describe_source, holder.sources),
    )


def who_am_i(accesses: Accesses, shown: Shown) -> pb.WhoAmIResponse:
    key = shown.key
    return pb.WhoAmIResponse(
        principal=str(shown.caller.principal),
        key_id="" if key is None else key.id,
        expires_ms=shown.expires_ms,
        mode=accesses.mode.name.lower(),
        super_user=accesses.is_super(shown.caller),
        certificate="" if shown.certificate is None else shown.certificate.fingerprint,
    )
