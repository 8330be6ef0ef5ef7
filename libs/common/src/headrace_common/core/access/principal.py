"""
Principals: who a caller is, as ``Type:name``, and whom rules and bindings are for.

Types never mix: ``User:alice`` and ``Cert:alice`` have nothing in common. Names are case-sensitive.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from headrace_common.core.access.names import WILDCARD, check_name, find_look_fault
from headrace_common.core.errors import Rejected
from headrace_common.core.image import Role
from headrace_common.core.node_rules import node_key_of

PRINCIPAL_NAME_CHARS_MAX: Final = 255
PRINCIPAL_NAME_SHOWN: Final = 80
_PARTS: Final = "/"


class PrincipalType(Enum):
    """What proved a principal; the value is how it is written."""

    USER = "User"
    """A password or an API key."""
    SERVICE_ACCOUNT = "ServiceAccount"
    """A token of Kubernetes; the name is ``NAMESPACE/NAME``."""
    OIDC = "Oidc"
    """A token of a configured issuer; the name is ``PROVIDER/SUBJECT``."""
    CERT = "Cert"
    """A client certificate under a CA of the user's; the name is its URI or CN."""
    GROUP = "Group"
    """A claim of a token. Rules are for groups; nobody calls as one."""
    NODE = "Node"
    """A process of the cluster, ``ROLE`` or ``ROLE-ID``. What nodes may do is ``node_rules``, never a rule."""


@dataclass(frozen=True, slots=True)
class Principal:
    """One principal. Making one with a name that cannot be raises ``Rejected``."""

    type: PrincipalType
    name: str

    def __post_init__(self) -> None:
        check_name("principal", self.name, PRINCIPAL_NAME_CHARS_MAX)
        looks = find_look_fault(self.name)
        if looks is not None:
            raise Rejected(f"principal {self.name[:PRINCIPAL_NAME_SHOWN]!r} {looks}")
        fault = _find_form_fault(self.type, self.name)
        if fault is not None:
            raise Rejected(f"{self} is no principal: {fault}")

    def __str__(self) -> str:
        return f"{self.type.value}:{self.name}"


@dataclass(frozen=True, slots=True)
class Everyone:
    """All principals of a type, as ``Type:*``: in rules and bindings only, for no caller is called so."""

    type: PrincipalType

    def __post_init__(self) -> None:
        if self.type in {PrincipalType.GROUP, PrincipalType.NODE}:
            raise Rejected(f"{self} stands for nobody; give rights to single groups, or to users with User:*")

    def __str__(self) -> str:
        return f"{self.type.value}:{WILDCARD}"


Grantee: TypeAlias = Principal | Everyone
"""Whom a rule or a binding is for."""

_TYPES: Final = {type.value: type for type in PrincipalType}


def parse_principal(text: str) -> Principal:
    """
    The inverse of ``str(Principal)``.

    Raises:
        Rejected: it is not of the form, its type is unknown, or nobody can have its name.
    """
    type, name = _split(text)
    return Principal(type, name)


def parse_grantee(text: str) -> Grantee:
    """
    A principal, or ``Type:*`` for everyone of that type.

    Raises:
        Rejected: as ``parse_principal``; or ``*`` of groups or nodes.
    """
    type, name = _split(text)
    return Everyone(type) if name == WILDCARD else Principal(type, name)


def _split(text: str) -> tuple[PrincipalType, str]:
    word, colon, name = text.partition(":")
    type = _TYPES.get(word)
    if not colon or type is None:
        raise Rejected(
            f"{text[:80]!r} names no principal; write Type:name, for example User:alice. Types are {', '.join(_TYPES)}"
        )
    return type, name


def _find_form_fault(type: PrincipalType, name: str) -> str | None:
    if name.endswith(WILDCARD):
        return "its name does not end with *, which no rule could name"
    if type in {PrincipalType.SERVICE_ACCOUNT, PrincipalType.OIDC}:
        first, _, second = name.partition(_PARTS)
        if not first or not second or (type is PrincipalType.SERVICE_ACCOUNT and _PARTS in second):
            form = "NAMESPACE/NAME" if type is PrincipalType.SERVICE_ACCOUNT else "PROVIDER/SUBJECT"
            return f"its name is {form}"
    if type is PrincipalType.NODE and name not in {role.value for role in Role}:
        try:
            node_key_of(name)
        except Rejected as error:
            return str(error)
    return None


ANONYMOUS: Final = Principal(PrincipalType.USER, "ANONYMOUS")
"""Who has shown no credential; it exists in the modes open and permissive only."""
BREAKGLASS: Final = Principal(PrincipalType.USER, "breakglass")
"""Who may do everything for an hour since a person at a controller's host said so."""
