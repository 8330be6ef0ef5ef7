"""Callers, and cells whose cluster asks who they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.common.tests.kit.access import ADMIN, ALICE
from libs.common.tests.kit.passwords import CORRECT, SALT, client, verifiers
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.changes import Change
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.grants import Scope
from headrace_common.core.access.principal import Principal
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.access.users import User
from headrace_common.core.features import ACCESS
from headrace_common.runtime.service import ServerConfig
from headrace_controller.config import ControllerConfig
from headrace_controller.core import records
from headrace_controller.engine.access import Altered
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.keys import NewKey, WantedKey
from headrace_controller.engine.nodes import Joining

ADMIN_KEY = ApiKey(KeyId("A" * 14), ADMIN, bytes(32), 0, note="from the controllers' file")


def config(mode: Mode = Mode.OPEN, **settings: Any) -> ControllerConfig:
    """A controller's, with one key of the administrator."""
    server = ServerConfig(node_token_file=Path("token"), drain_ms_max=100)
    given = {"admin_keys": (ADMIN_KEY,), "server": server, "access_mode": mode.name.lower(), **settings}
    return ControllerConfig(**given)


def called_by(principal: Principal, scope: Scope | None = None) -> Rights:
    """What the engine is told of a call."""
    return Rights(Control(), Caller(principal, scope=scope))


class Office:
    """An active controller of a cluster at the level of access."""

    def __init__(self, world: Cell, engine: ControllerEngine) -> None:
        self.world = world
        self.engine = engine

    @property
    def view(self) -> View:
        return self.engine.follower.access

    async def rows(self) -> dict[str, bytes]:
        """What the store holds."""
        items = (await self.world.store.list_all()).items
        prefix = records.ACCESS_PREFIX
        return {item.key.removeprefix(prefix): item.value for item in items if item.key.startswith(prefix)}

    async def alter(
        self, *changes: Change, by: Principal = ADMIN, mode: Mode | None = None, validate_only: bool = False
    ) -> Altered:
        return await self.engine.alter_access(changes, mode, called_by(by), validate_only=validate_only)

    async def create(
        self, by: Principal = ALICE, with_scope: Scope | None = None, with_key: ApiKey | None = None, **wanted: Any
    ) -> NewKey:
        """A key; ``with_scope`` is that of the key which it calls with, ``with_key`` that key."""
        return await self.engine.create_key(WantedKey(**wanted), called_by(by, with_scope), with_key)

    async def delete(self, ids: Sequence[KeyId], by: Principal = ALICE) -> None:
        await self.engine.delete_keys(ids, called_by(by))

    async def make_user(self, name: str = "alice", password: str = CORRECT, by: Principal = ADMIN) -> User:
        await self.engine.create_user(name, verifiers(password), called_by(by))
        return self.view.users[name]

    async def change_password(
        self, password: str, grace_ms: int = 0, by: Principal = ADMIN, name: str = "alice", salt: bytes = SALT
    ) -> None:
        await self.engine.change_password(name, verifiers(password, salt), grace_ms, called_by(by))

    async def delete_user(self, name: str = "alice", by: Principal = ADMIN, *, cascade: bool = False) -> None:
        await self.engine.delete_user(name, called_by(by), cascade=cascade)

    async def log_in(self, password: str = CORRECT, name: str = "alice", address: str = "10.0.0.1") -> NewKey:
        """The key that who has this password gets."""
        asks = client(name, password)
        begun = self.engine.begin_login(asks.mechanism, asks.first(), address)
        done = await self.engine.finish_login(begun.exchange_id, asks.last(begun.message))
        asks.check(done.message)
        assert done.made is not None, "it is the last step"
        return done.made

    async def forget(self) -> None:
        """What the term does about old keys from time to time."""
        await self.world.until(lambda: self.engine.candidate.term is not None)
        term = self.engine.candidate.term
        assert term is not None, "it is active"
        await term.keys.forget_expired()
        await term.users.forget_old()


@asynccontextmanager
async def office(settings: ControllerConfig | None = None) -> AsyncIterator[Office]:
    """One, whose rows are as its settings say."""
    async with cell(settings or config(Mode.PERMISSIVE)) as world:
        engine = await world.active()
        await engine.register(Joining(broker(1, level=ACCESS.level)))
        await world.until(lambda: engine.image.has(ACCESS))
        await world.pass_ms(500)
        yield Office(world, engine)
