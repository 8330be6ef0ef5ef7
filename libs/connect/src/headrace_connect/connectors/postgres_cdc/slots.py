"""The replication slot: what it is, making it, and taking it from a task that this one follows."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from headrace_common.runtime.clock import pause_ms
from headrace_connect.connectors.postgres_cdc.session import NAME, Session, sqlstate_of
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.core.pgoutput import parse_lsn
from headrace_connect.plugin import RetriableError

FAILOVER_SINCE: Final = 170_000
_SLOT: Final = """
select s.plugin::text, s.database::text, s.active_pid, s.confirmed_flush_lsn::text, s.wal_status, a.application_name
from pg_replication_slots s left join pg_stat_activity a on a.pid = s.active_pid
where s.slot_name = $1
"""
_TIMED_OUT: Final = "57014"
_FREE_POLL_MS: Final = 20.0
_FREE_POLLS: Final = 250


@dataclass(frozen=True, slots=True)
class Slot:
    """As the server has it."""

    plugin: str | None
    """None: it is a physical one."""
    database: str | None
    active_pid: int | None
    """Of the server's process that reads it; None: nobody does."""
    confirmed: int
    """Changes that committed below it are not sent any more."""
    is_lost: bool
    """WAL that it needs was removed."""
    holder: str
    """How who reads it calls itself."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that reads a slot, as the server lists it."""

    connector: str
    """A hash of its name."""
    started: int
    """When it connected, by the server's clock, in µs."""

    @classmethod
    def of(cls, connector: str, started: int) -> Holder:
        """A task of the connector of that name."""
        return cls(blake2b(connector.encode(), digest_size=8).hexdigest(), started)

    @classmethod
    def parse(cls, application: str) -> Holder | None:
        """From the name of an application; None: it is none of these."""
        name, *parts = application.split(" ")
        if name != NAME or len(parts) != 2 or not parts[1].isdigit():
            return None
        return cls(parts[0], int(parts[1]))

    def __str__(self) -> str:
        return f"{NAME} {self.connector} {self.started}"

    def follows(self, other: Holder | None) -> bool:
        """Whether the other is an earlier task of the same connector, or an earlier connection of this one."""
        return other is not None and other.connector == self.connector and other.started <= self.started


async def find_slot(session: Session, name: str) -> Slot | None:
    """The slot of that name; None: there is none."""
    rows = await session.fetch(_SLOT, name)
    if not rows:
        return None
    plugin, database, pid, confirmed, status, holder = rows[0]
    at = parse_lsn(confirmed) if confirmed else 0
    return Slot(plugin, database, pid, at, status == "lost", holder or "")


async def create_slot(session: Session, settings: SourceSettings) -> None:
    """
    Make the slot; it waits until all transactions have ended that are open now.

    Raises:
        RetriableError: they do not end soon enough, or there are too many slots.
        InvalidConfig: the user may not.
    """
    failover = ", failover => true" if settings.slot_failover and session.version >= FAILOVER_SINCE else ""
    try:
        await session.fetch(f"select pg_create_logical_replication_slot($1, 'pgoutput'{failover})", settings.slot)
    except RetriableError as error:
        if sqlstate_of(error) == _TIMED_OUT:
            text = f"the slot {settings.slot} is made when the transactions have ended that are open"
            raise RetriableError(text) from error
        raise


async def now_us(session: Session) -> int:
    """The server's clock, µs."""
    ((now,),) = await session.fetch("select (extract(epoch from clock_timestamp()) * 1000000)::int8")
    assert isinstance(now, int), "it was cast"
    return now


async def free_slot(session: Session, slot: Slot, name: str, holder: Holder) -> None:
    """
    End who reads the slot, if that is an earlier task of this connector: it was fenced when this one began.

    Raises:
        RetriableError: another program reads it, or a newer task.
    """
    pid = slot.active_pid
    if pid is None:
        return
    other = Holder.parse(slot.holder)
    if not holder.follows(other):
        who = "a newer task of this connector" if other and other.connector == holder.connector else slot.holder
        raise RetriableError(f"the slot {name} is read by {who or 'another program'} (process {pid} of the server)")
    await session.fetch("select pg_terminate_backend($1::int)", pid)
    for _ in range(_FREE_POLLS):
        found = await find_slot(session, name)
        if found is None or found.active_pid != pid:
            return
        await pause_ms(_FREE_POLL_MS)
    raise RetriableError(f"the slot {name} is still read by process {pid} of the server, which was asked to end")
