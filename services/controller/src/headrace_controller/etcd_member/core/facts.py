"""
Decides what a member must remember on its volume, and how that is written.

The facts are on disk before anybody is told of them and before etcd may act on them, so a crash at any point leaves
either the old facts or the new ones. They lie beside etcd's data directory: a lost volume takes both away.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from headrace_controller.etcd_member.core.roster import Enrolled, Peer, Roster

FORMAT = 1


class Phase(StrEnum):
    """How far a volume has come."""

    OPEN = "open"
    """etcd never ran on it."""
    NEW = "new"
    """The last roster it promised is to be started; etcd may have tried."""
    ADDING = "adding"
    """It is to be added to a running cluster; etcd may have tried."""
    STARTED = "started"
    """etcd's data was seen on it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one volume knows of itself."""

    member: str
    volume: str
    phase: Phase = Phase.OPEN
    promises: tuple[Roster, ...] = ()
    """Rosters that this volume agreed to start with, oldest first."""
    tls: bool = False
    """Its cluster knows the member by an address with TLS. Versions that had none wrote nothing of it."""

    def promise(self, roster: Roster) -> Facts:
        """Agreed to one more roster; those from before stay known, as another member may have started on one."""
        assert roster.volume_of(self.member) == self.volume, "a volume promises for itself"
        earlier = tuple(r for r in self.promises if r != roster)
        return replace(self, phase=Phase.OPEN, promises=(*earlier, roster))

    def decide(self, roster: Roster) -> Facts:
        """Settled on a roster it has promised."""
        assert roster in self.promises, "nothing is started that was not promised"
        url = roster.url_of(self.member)
        assert url is not None, "a volume promises for itself"
        return replace(self.promise(roster), phase=Phase.NEW).known_at(url)

    def at(self, phase: Phase) -> Facts:
        return replace(self, phase=phase)

    def known_at(self, url: str) -> Facts:
        """The cluster knows the member by this address, or is about to."""
        return replace(self, tls=Peer(self.member, url).tls)


class UnreadableFacts(ValueError):
    """The file holds no facts that this version can read."""


def encode(facts: Facts) -> bytes:
    """As a file's content."""
    return json.dumps({"format": FORMAT, **asdict(facts)}, indent=1).encode() + b"\n"


def decode(content: bytes) -> Facts:
    """
    The facts of a file.

    Raises:
        UnreadableFacts: it is not one, or of a newer version.
    """
    try:
        fields = json.loads(content)
        if fields["format"] != FORMAT:
            raise UnreadableFacts(f"it has format {fields['format']}, this version reads {FORMAT}")
        promises = tuple(_roster(r) for r in fields["promises"])
        phase, tls = Phase(fields["phase"]), fields.get("tls") is True
        return Facts(str(fields["member"]), str(fields["volume"]), phase, promises, tls)
    except UnreadableFacts:
        raise
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UnreadableFacts(f"it is damaged ({type(error).__name__}: {error})") from error


def _roster(fields: dict[str, object]) -> Roster:
    members = fields["members"]
    assert isinstance(members, list), "a roster lists its members"
    enrolled = (Enrolled(Peer(**m["peer"]), str(m["volume"])) for m in members)
    return Roster(str(fields["cluster"]), tuple(enrolled))
