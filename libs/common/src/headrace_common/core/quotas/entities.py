"""
Whom a quota is set for, and how that is written; it is written so in keys of rows too.

==============================  =====================================================================================
``users/USER/clients/CLIENT``   a user with a client id
``users/USER``                  a user
``clients/CLIENT``              a client id, whoever shows it
``prefixes/PREFIX``             topics whose names begin so, together
==============================  =====================================================================================

``*`` for a USER or a CLIENT is Kafka's default: each one that has none of its own. USER is a principal,
such as ``User:alice``. In names ``/`` is written ``%2F`` and ``%`` is written ``%25``, so each entity has one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace_common.core.access.names import WILDCARD, check_name, find_fault
from headrace_common.core.access.principal import Principal, PrincipalType, parse_principal
from headrace_common.core.access.resources import INTERNAL_PREFIX, RESOURCE_NAME_CHARS_MAX
from headrace_common.core.errors import Rejected
from headrace_common.core.quotas.kinds import Limit, Quota, Rate

CLIENT_ID_CHARS_MAX: Final = 255
DEFAULT: Final = WILDCARD
"""Stands for each one that has none of its own; it is the name of none."""
NO_CLIENT_ID: Final = ""
_USERS: Final = "users"
_CLIENTS: Final = "clients"
_PREFIXES: Final = "prefixes"


@dataclass(frozen=True, slots=True)
class Clients:
    """Users, client ids, or both. Making one that cannot be raises ``Rejected``."""

    user: str | None = None
    """The text of a principal, ``DEFAULT``, or None: it is about client ids alone."""
    client_id: str | None = None
    """A client id, ``DEFAULT``, or None: it is about users alone."""

    def __post_init__(self) -> None:
        if self.user is None and self.client_id is None:
            raise Rejected("a quota is for a user, a client id or both")
        if self.user is not None and self.user != DEFAULT and not has_quotas(parse_principal(self.user)):
            raise Rejected(f"{self.user} has no quotas: nobody calls as a group, and nodes are never throttled")
        if self.client_id is not None and self.client_id != DEFAULT:
            check_name("client id", self.client_id, CLIENT_ID_CHARS_MAX)

    def __str__(self) -> str:
        named = ((_USERS, self.user), (_CLIENTS, self.client_id))
        return "/".join(f"{kind}/{_escape(name)}" for kind, name in named if name is not None)

    @property
    def quotas(self) -> frozenset[Quota]:
        """What can be set for it."""
        return frozenset(Rate)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Topics whose names begin so, together. Making one that cannot be raises ``Rejected``."""

    prefix: str

    def __post_init__(self) -> None:
        check_name("prefix", self.prefix, RESOURCE_NAME_CHARS_MAX)
        if self.prefix.startswith(INTERNAL_PREFIX):
            raise Rejected(f"names that begin with {INTERNAL_PREFIX} are the system's, and have no quotas")

    def __str__(self) -> str:
        return f"{_PREFIXES}/{_escape(self.prefix)}"

    @property
    def quotas(self) -> frozenset[Quota]:
        """What can be set for it."""
        return frozenset(Limit)


Entity: TypeAlias = Clients | Prefix


def parse_entity(text: str) -> Entity:
    """
    The inverse of ``str(Entity)``; nothing else is taken, so that no entity has two rows.

    Raises:
        Rejected: it is not of the form, or there can be no such entity.
    """
    parts = text.split("/")
    names = list(map(_unescape, parts[1::2]))
    entity: Entity
    match parts[::2], names:
        case [["users", "clients"], [user, client_id]]:
            entity = Clients(user, client_id)
        case [["users"], [user]]:
            entity = Clients(user)
        case [["clients"], [client_id]]:
            entity = Clients(None, client_id)
        case [["prefixes"], [prefix]]:
            entity = Prefix(prefix)
        case _:
            raise Rejected(f"{text[:80]!r} names nothing that has quotas; write for example users/User:alice")
    if str(entity) != text:
        raise Rejected(f"{text[:80]!r} is written {entity}")
    return entity


def client_id_of(text: str) -> str:
    """
    The client id that counts of what a client shows: what cannot be the name of one is none, and all that show none are
    one. So what a stranger shows costs no more memory than a name.
    """
    return NO_CLIENT_ID if text == "" or find_fault(text, CLIENT_ID_CHARS_MAX) is not None else text


def has_quotas(principal: Principal) -> bool:
    """Nodes are never throttled, and nobody calls as a group."""
    return principal.type not in {PrincipalType.NODE, PrincipalType.GROUP}


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def _unescape(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")
