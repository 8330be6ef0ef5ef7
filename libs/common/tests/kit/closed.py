"""Clusters by their rows of access: some users, a key of each, and who may what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, ApiKey, digest_of, format_key, parse_key
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Grantee, Principal, PrincipalType
from headrace_common.core.access.roles import Binding
from headrace_common.core.access.rows import (
    CONFIGURED,
    PRODUCER_KEY_BYTES,
    STATE,
    Configured,
    Mode,
    changed_rows,
    write_configured,
    write_key,
    write_producer_key,
    write_state,
    write_user,
)
from headrace_common.core.access.state import Access as Rules
from headrace_common.core.access.users import User
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.access_gate import Access
from headrace_common.runtime.clock import SystemClock

CREATED_MS: Final = 1_000
PRODUCER_KEY: Final = b"k" * PRODUCER_KEY_BYTES


def user(name: str) -> Principal:
    return Principal(PrincipalType.USER, name)


def key_text(name: str) -> str:
    """The API key of a user, whatever the cluster knows of it."""
    return format_key(name.encode().ljust(ID_BYTES, b"."), name.encode().ljust(SECRET_BYTES, b"!"))


def key_of(name: str, *, expires_ms: int | None = None) -> ApiKey:
    """What a cluster knows of it."""
    id, secret = parse_key(key_text(name))
    return ApiKey(id, user(name), digest_of(secret), CREATED_MS, expires_ms)


def bearing(name: str | None) -> dict[str, str]:
    """The header, or metadata, with which a user calls; None: without a credential."""
    return {} if name is None else {"authorization": f"Bearer {key_text(name)}"}


@dataclass
class Rows:
    """What etcd holds under ``access/``, to be changed between calls."""

    mode: Mode = Mode.CLOSED
    rules: Mapping[Grantee, frozenset[Grant]] = field(default_factory=dict)
    bindings: Mapping[Grantee, frozenset[Binding]] = field(default_factory=dict)
    keys: Iterable[ApiKey] = ()
    super_users: frozenset[Principal] = frozenset()
    blocked: frozenset[Principal] = frozenset()
    users: Iterable[User] = ()
    of_files: tuple[ApiKey, ...] = ()
    """Keys that the controllers' files name."""
    producer_key: bytes = PRODUCER_KEY

    def image(self, before: ClusterImage = EMPTY_IMAGE) -> ClusterImage:
        """``before`` with these rows."""
        configured = Configured(self.super_users, self.of_files)
        rows = {
            STATE: write_state(self.mode, 1),
            CONFIGURED: write_configured(configured),
            **changed_rows(Rules(), Rules(rules=self.rules, bindings=self.bindings, blocked=self.blocked)),
            **dict(map(write_key, self.keys)),
            **dict(map(write_user, self.users)),
            **write_producer_key(self.producer_key),
        }
        return replace(before, revision=max(1, before.revision), access=rows)

    def access(self, before: ClusterImage = EMPTY_IMAGE) -> Access:
        """Of a process that has this image."""
        image = self.image(before)
        return Access(lambda: image, NodeGate(), SystemClock())
