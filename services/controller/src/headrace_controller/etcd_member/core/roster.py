"""
Decides which volumes form a new cluster together, and which ids etcd will give it.

A roster names every member with its address and its volume. etcd reckons the ids of a new cluster and of its members
from the members' addresses and the cluster's token; the token is made from the roster. So a member whose volume was
lost never comes back under the id that it had: another volume is another roster, other ids, and etcds of two rosters
do not talk to each other. Used by ``rendezvous``, which also recognizes a roster by the id of a running cluster.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """A member as it was configured."""

    name: str
    url: str
    """Where the other members reach it: https://host:port with TLS, else http://host:port."""

    @property
    def tls(self) -> bool:
        """Whether it speaks TLS there."""
        return self.url.startswith("https:")

    @property
    def in_plain(self) -> Peer:
        """The same member before it had TLS."""
        return Peer(self.name, f"http:{self.url.partition(':')[2]}")

    def is_at(self, url: str) -> bool:
        """Whether the address is this one, with TLS or without."""
        return self.url.partition(":")[2] == url.partition(":")[2]


@dataclass(frozen=True, slots=True, order=True)
class Enrolled:
    """A member with the volume that it is to start on."""

    peer: Peer
    volume: str
    """Drawn when the volume was first seen; another volume has another one."""


@dataclass(frozen=True, slots=True)
class Roster:
    """All members of a new cluster, in the order of their names."""

    cluster: str
    """Name that all members were given; clusters of different names never mix."""
    members: tuple[Enrolled, ...]

    def __post_init__(self) -> None:
        assert list(self.members) == sorted(self.members), "one roster has one form"

    @property
    def token(self) -> str:
        """The cluster's token (``initial-cluster-token``): the same for the same roster, else another."""
        rows = [self.cluster, *(f"{m.peer.name} {m.peer.url} {m.volume}" for m in self.members)]
        return f"{self.cluster}-{hashlib.sha256(chr(10).join(rows).encode()).hexdigest()[:24]}"

    @property
    def cluster_id(self) -> int:
        """The id that etcd gives to the cluster of this roster: the hash over the sorted ids of its members."""
        ids = sorted(_member_id(m.peer.url, self.token) for m in self.members)
        return _first_eight(b"".join(i.to_bytes(8, "big") for i in ids))

    def member_id(self, name: str) -> int:
        """The id that etcd gives to a member; it is in the roster."""
        (url,) = (m.peer.url for m in self.members if m.peer.name == name)
        return _member_id(url, self.token)

    def volume_of(self, name: str) -> str | None:
        return next((m.volume for m in self.members if m.peer.name == name), None)

    def url_of(self, name: str) -> str | None:
        return next((m.peer.url for m in self.members if m.peer.name == name), None)


def _member_id(url: str, token: str) -> int:
    """As etcd's ``computeMemberID`` does for a member of a new cluster that has one address."""
    return _first_eight(f"{url}{token}".encode())


def _first_eight(what: bytes) -> int:
    return int.from_bytes(hashlib.sha1(what, usedforsecurity=False).digest()[:8], "big")
