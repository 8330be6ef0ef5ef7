"""
What the admin clients return about who may do what: frozen values, made from messages of the ``Admin`` service here and
nowhere else. What changes it is in ``headrace.access``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Made, Told
from headrace_common.core.secret import Secret

if TYPE_CHECKING:
    from headrace_proto.v1 import access_pb2 as pb  # noqa: F401 - in the bases


@dataclass(frozen=True, slots=True)
class GrantInfo(Made["pb.Grant"], host=lambda grant: grant.host or None):
    """Something that is allowed, or denied."""

    deny: bool
    operations: tuple[str, ...]
    type: str
    """``TOPIC``, ``GROUP``, ``TRANSACTIONAL_ID``, ``CLUSTER``, ``PRINCIPAL`` or ``CONNECTOR``."""
    pattern: str
    """A name, the beginning of names with a ``*`` behind it, or ``*``."""
    host: str | None
    """The address that the call must come from; None: any."""


@dataclass(frozen=True, slots=True)
class RuleInfo(Made["pb.AccessRule"]):
    """A grant for a principal, a group, or everyone of a type (``User:*``)."""

    principal: str
    grant: GrantInfo


@dataclass(frozen=True, slots=True)
class TargetInfo(Made["pb.AccessTarget"]):
    """Resources of one type."""

    type: str
    pattern: str


@dataclass(frozen=True, slots=True)
class BindingInfo(Made["pb.AccessBinding"]):
    """A role that somebody has, on some resources."""

    principal: str
    role: str
    targets: tuple[TargetInfo, ...]


@dataclass(frozen=True, slots=True)
class RoleInfo(
    Made["pb.AccessRole"],
    operations=lambda role: {given.type: tuple(given.operations) for given in role.operations},
):
    """A role, built in or of one's own."""

    name: str
    operations: Mapping[str, tuple[str, ...]]
    """What it gives on the targets of a binding, by their type; what built-in roles give besides is not told."""


@dataclass(frozen=True, slots=True)
class AccessDescription(Told["pb.DescribeAccessResponse"]):
    """Who may do what."""

    mode: str
    """``open``, ``permissive`` or ``closed``."""
    generation: int
    """Grows with each change."""
    rules: tuple[RuleInfo, ...]
    bindings: tuple[BindingInfo, ...]
    roles: tuple[RoleInfo, ...]
    blocked: tuple[str, ...]
    super_users: tuple[str, ...]
    faults: tuple[str, ...]
    """What this version cannot read, and why."""


@dataclass(frozen=True, slots=True)
class ReachInfo(Made["pb.AccessReach"], host=lambda reach: reach.host or None):
    """Operations on all names of a pattern."""

    type: str
    pattern: str
    operations: tuple[str, ...]
    host: str | None

    def __str__(self) -> str:
        host = "" if self.host is None else f" from {self.host}"
        return f"{','.join(self.operations)} {self.type} {self.pattern}{host}"


@dataclass(frozen=True, slots=True)
class ShiftInfo(Made["pb.AccessShift"]):
    """What somebody gains and loses."""

    principal: str
    gains: tuple[ReachInfo, ...]
    loses: tuple[ReachInfo, ...]


@dataclass(frozen=True, slots=True)
class ApiKeyInfo(Told["pb.ApiKeyDescription"]):
    """An API key, without its secret."""

    id: str
    owner: str
    """Who calls with it."""
    created_ms: int
    """Unix time."""
    expires_ms: int | None
    """None: never."""
    scope: tuple[GrantInfo, ...]
    """What it may be used for at most. Empty: all that its owner may do."""
    note: str
    configured: bool
    """It comes from a file of the controllers, and goes with that."""
    login: bool
    """Its owner logged in with a password, and it goes with that."""


@dataclass(frozen=True, slots=True)
class NewApiKey(Made["pb.CreateKeyResponse"], key=lambda answer: Secret(answer.key)):
    """A key that was just made. ``key.reveal()`` is what clients show; it is kept nowhere else."""

    key: Secret
    description: ApiKeyInfo


@dataclass(frozen=True, slots=True)
class UserInfo(Told["pb.UserDescription"]):
    """A user with a password."""

    name: str
    created_ms: int
    """Unix time."""
    password_set_ms: int
    old_password_until_ms: int | None
    """Until when the password of before counts; None: it does not."""
    blocked: bool


@dataclass(frozen=True, slots=True)
class AccessExplanation(Told["pb.ExplainAccessResponse"], remedy=lambda answer: answer.remedy or None):
    """Why somebody may, or may not."""

    allowed: bool
    reason: str
    """What decided, as the end of a sentence."""
    sources: tuple[str, ...]
    """The rules and roles that match; denies first."""
    remedy: str | None
    """A command that would allow it; None: it is allowed, or no change of rules would."""


@dataclass(frozen=True, slots=True)
class HolderInfo(Made["pb.AccessHolder"]):
    """What rules say of a principal, of everyone of a type, or of all who have a group; of each alone."""

    principal: str
    allowed: bool
    """False: it may not, and would otherwise; or it is a group, and who has it may not."""
    reason: str
    """``super_user``, ``allowed``, ``blocked`` or ``denied``."""
    anywhere: bool
    """Whether this is so from addresses that no rule names."""
    hosts: tuple[str, ...]
    """Addresses from which it is the other way round."""
    sources: tuple[str, ...]
    """The rules and roles that say something of it; denies first."""


@dataclass(frozen=True, slots=True)
class AccessHolders(Told["pb.WhoCanResponse"]):
    """Who may do something, as far as the caller may know. Whoever is not named is as everyone of its type."""

    holders: tuple[HolderInfo, ...]
    """By principal."""
    more: bool
    """There are more than were asked for."""


@dataclass(frozen=True, slots=True)
class SeenTimes(Made["pb.SeenTimes"]):
    """When something was seen."""

    first_ms: int
    """Unix time."""
    last_ms: int
    count: int
    """How often it was asked for. An open stream counts once a minute, in a closed cluster every 10."""


@dataclass(frozen=True, slots=True)
class SeenStranger(Made["pb.SeenStranger"], host=lambda one: one.host or None):
    """Somebody who came without a credential that is taken, or in plain text, and was let in."""

    host: str | None
    """None: not known."""
    wrong: bool
    """It showed one that is not valid."""
    plain: bool
    """It came in plain text to a node that speaks TLS too, whatever it showed."""
    seen: SeenTimes


@dataclass(frozen=True, slots=True)
class SeenRefusal(Made["pb.SeenRefusal"], host=lambda one: one.host or None, remedy=lambda one: one.remedy or None):
    """Something that a closed cluster would refuse."""

    principal: str
    host: str | None
    operation: str
    type: str
    name: str
    """``*``: any would do."""
    seen: SeenTimes
    remedy: str | None
    """A command that would allow it; None: no change of rules would, or there are too many."""


@dataclass(frozen=True, slots=True)
class SeenUse(Made["pb.SeenUse"], host=lambda one: one.host or None):
    """A right that rules gave, and that was used."""

    principal: str
    operation: str
    type: str
    name: str
    seen: SeenTimes
    groups: tuple[str, ...]
    """Of the principal's token."""
    host: str | None
    """Of ``AccessChanged``: the address from which it would be refused; None: from those that no rule names, too."""


@dataclass(frozen=True, slots=True)
class SeenBy(Made["pb.SeenBy"], fault=lambda one: one.fault or None):
    """One node that was asked."""

    node: str
    since_ms: int | None
    """It has looked since then; None: it does not."""
    fault: str | None
    """Why it told nothing; None: it did."""


@dataclass(frozen=True, slots=True)
class AccessChanged(Told["pb.AlterAccessResponse"]):
    """What a change has done, or would do."""

    generation: int
    shifts: tuple[ShiftInfo, ...]
    more: bool
    """There are more shifts than are told."""
    refuses: tuple[SeenUse, ...]
    """Of a dry run: what was done in the last day and would be refused, as far as the caller may know."""
    refuses_more: bool
    """There is more of that than is told."""
    nodes: tuple[SeenBy, ...]
    """Of a dry run: those that were asked for it."""


@dataclass(frozen=True, slots=True)
class RefusalInfo(Made["pb.RefusedAccess"], host=lambda one: one.host or None, remedy=lambda one: one.remedy or None):
    """Something that was refused, as one node remembers it."""

    node: str
    """Such as ``broker-1``."""
    principal: str
    groups: tuple[str, ...]
    """Of its token."""
    host: str | None
    """The address that it came from; None: not known."""
    operation: str
    type: str
    name: str
    """``*``: any would do."""
    narrowed: bool
    """Its key is for some things only."""
    seen: SeenTimes
    reason: str
    """What decided, as the end of a sentence."""
    sources: tuple[str, ...]
    """The rules and roles that matched then, denies first; the first 20."""
    allowed: bool
    """Rules allow it meanwhile."""
    remedy: str | None
    """A command that would allow it now; None: it is allowed, or no change of rules would."""


@dataclass(frozen=True, slots=True)
class WhyRefused(Told["pb.WhyRefusedResponse"]):
    """What nodes remember of a refusal."""

    refusals: tuple[RefusalInfo, ...]
    """By node; at least one."""
    nodes: tuple[SeenBy, ...]
    """Those that were asked."""


@dataclass(frozen=True, slots=True)
class ObservedAccess(Told["pb.ObservedResponse"]):
    """What nodes have seen of who calls; of each kind the latest first."""

    mode: str
    since_ms: int | None
    """All that have answered look since then."""
    strangers: tuple[SeenStranger, ...]
    refusals: tuple[SeenRefusal, ...]
    uses: tuple[SeenUse, ...]
    more: bool
    """More came without a credential or a right than is told."""
    nodes: tuple[SeenBy, ...]
    unused: tuple[RuleInfo, ...]
    """Rules that nothing needed which was seen in the last day."""


@dataclass(frozen=True, slots=True)
class WhoAmI(
    Told["pb.WhoAmIResponse"],
    key_id=lambda answer: answer.key_id or None,
    certificate=lambda answer: answer.certificate or None,
):
    """Who the cluster takes the caller for."""

    principal: str
    key_id: str | None
    """None: it came without one."""
    expires_ms: int | None
    mode: str
    """Of the cluster: ``open``, ``permissive`` or ``closed``."""
    super_user: bool
    certificate: str | None
    """SHA-256, hexadecimal, of the certificate that the connection showed; None: of no such connection."""
