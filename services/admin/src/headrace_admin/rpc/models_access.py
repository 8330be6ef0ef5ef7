"""
The shapes of REST for access: members are called as in the protos, so that what is told can be sent back. See
``models`` for what they share.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from headrace_admin.rpc.models import INT64_MAX, Request, example
from headrace_common.core.access.observed import DAY_MS

Principal = Annotated[str, Field(min_length=1, max_length=300, description="Such as User:alice, or User:* for all.")]
Name = Annotated[str, Field(max_length=300)]
Words = Annotated[list[Annotated[str, Field(max_length=50)]], Field(min_length=1, max_length=20)]
Type = Annotated[str, Field(max_length=50, description="TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER or PRINCIPAL.")]
Pattern = Annotated[Name, Field(description="A name, the beginning of names with a * behind it, or * for all.")]


class Grant(Request):
    """Something that is allowed or denied."""

    deny: bool = Field(False, description="True: denied, which outweighs every allow.")
    operations: Words
    type: Type
    pattern: Pattern
    host: Annotated[str, Field(max_length=100)] = Field("", description="The address it must come from. Empty: any.")


class RuleIn(Request):
    """A grant for somebody."""

    principal: Principal
    grant: Grant


class TargetIn(Request):
    """What a role is given on."""

    type: Type
    pattern: Pattern


class BindingIn(Request):
    """A role for somebody."""

    principal: Principal
    role: Name
    targets: Annotated[list[TargetIn], Field(max_length=100)] = Field(default_factory=list)


class RoleOperationsIn(Request):
    """What a role gives on one type of resource."""

    type: Type
    operations: Words


class RoleIn(Request):
    """A role of one's own."""

    name: Name
    operations: Annotated[list[RoleOperationsIn], Field(max_length=20)] = Field(
        default_factory=list, description="Empty: of a role that is removed."
    )


class ChangeIn(Request):
    """One change; exactly one of rule, binding, role and block."""

    remove: bool = Field(False, description="True: it is taken away, given exactly; of a role the name counts.")
    cascade: bool = Field(False, description="Of a role that is taken away: its bindings go with it.")
    rule: RuleIn | None = None
    binding: BindingIn | None = None
    role: RoleIn | None = None
    block: Principal | None = Field(None, description="May do nothing, whatever else is said of it.")

    @property
    def one(self) -> bool:
        """Whether it changes exactly one thing."""
        return sum(item is not None for item in (self.rule, self.binding, self.role, self.block)) == 1


class ChangeAccess(Request):
    """Changes of who may do what: all of them or none, in their order."""

    model_config = example(
        changes=[
            {
                "rule": {
                    "principal": "User:alice",
                    "grant": {"operations": ["READ"], "type": "TOPIC", "pattern": "flights"},
                }
            }
        ],
        validate_only=True,
    )

    changes: Annotated[list[ChangeIn], Field(max_length=1_000)] = Field(default_factory=list)
    validate_only: bool = Field(False, description="Say who would gain and lose what, and do nothing.")
    mode: Literal["", "permissive", "closed"] = Field(
        "", description="The cluster's mode from then on; it never falls. Empty: as it is."
    )
    accept_loss_of: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=10_000)] = Field(
        default_factory=list, description="With closed: principals and addresses that may be refused from then on."
    )
    accept_loss: bool = Field(False, description="With closed: whoever it is may be refused.")
    within_ms: Annotated[int, Field(ge=0, le=DAY_MS)] = Field(
        0, description="With closed: how far back is looked at who would be refused. 0: a day."
    )


class QuotaIn(Request):
    """One quota of one entity."""

    entity: Annotated[str, Field(min_length=1, max_length=2_000, description="Such as users/User:alice, or users/*.")]
    name: Annotated[str, Field(max_length=50, description="Such as producer_byte_rate; of prefixes topics.max.")]
    value: float | None = Field(None, description="Absent: it is taken away.")


class ChangeQuotas(Request):
    """Changes of quotas: all of them or none, in their order."""

    model_config = example(
        changes=[{"entity": "users/User:alice", "name": "producer_byte_rate", "value": 1_048_576}], validate_only=True
    )

    changes: Annotated[list[QuotaIn], Field(min_length=1, max_length=1_000)]
    validate_only: bool = Field(False, description="Say whether it can be done, and do nothing.")


class CreateKey(Request):
    """A new API key."""

    model_config = example(owner="User:alice", note="the reader of flights")

    owner: Annotated[str, Field(max_length=300)] = Field("", description="Who calls with it. Empty: the caller.")
    lifetime_ms: Annotated[int, Field(ge=-1, le=INT64_MAX)] = Field(0, description="0: a year; -1: for ever.")
    scope: Annotated[list[Grant], Field(max_length=1_000)] = Field(
        default_factory=list, description="What it may be used for at most. Empty: all that its owner may do."
    )
    note: Annotated[str, Field(max_length=255)] = Field("", description="What for.")


class Verifier(Request):
    """What is kept of a password for one mechanism of SCRAM; bytes are in base64. Who sets the password computes it."""

    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
    salt: Annotated[str, Field(max_length=100)]
    iterations: Annotated[int, Field(ge=4_096, le=1_000_000)]
    stored_key: Annotated[str, Field(max_length=100)]
    server_key: Annotated[str, Field(max_length=100)]


_EXAMPLE: Final = [
    {
        "mechanism": "SCRAM-SHA-256",
        "salt": "W22ZaJ0SNY7soEsUEjb6gQ==",
        "iterations": 16384,
        "stored_key": "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=",
        "server_key": "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
    }
]


class CreateUser(Request):
    """A new user with a password. The password stays with who sets it."""

    model_config = example(name="alice", verifiers=_EXAMPLE)

    name: Annotated[str, Field(min_length=1, max_length=255, description="Of the principal User:NAME.")]
    verifiers: Annotated[list[Verifier], Field(max_length=10, description="One of each mechanism.")]


class ChangePassword(Request):
    """Another password."""

    model_config = example(verifiers=_EXAMPLE, grace_ms=0)

    verifiers: Annotated[list[Verifier], Field(max_length=10, description="One of each mechanism.")]
    grace_ms: Annotated[int, Field(ge=0, le=7 * 86_400_000)] = Field(
        0, description="How long that of before still counts; then the salts have to be those of before."
    )
