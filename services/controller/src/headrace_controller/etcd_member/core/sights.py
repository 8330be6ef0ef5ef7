"""What a member can see of another one: nothing, its rendezvous before etcd runs, or its etcd."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headrace_controller.etcd_member.core.facts import Facts, Phase


@dataclass(frozen=True, slots=True)
class Silent:
    """Nobody answers there, or nobody who is meant."""

    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an etcd member without data tells the others while it waits for them."""

    cluster: str
    member: str
    volume: str
    promised: str | None
    """Token of the roster it promised last."""
    decided: bool
    """It starts with that roster, whatever happens."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as a running etcd lists it."""

    id: int
    name: str
    """Empty until the member has started once, if it was added to a running cluster."""
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...] = ()
    """Empty until the member has started once."""


@dataclass(frozen=True, slots=True)
class Running:
    """An etcd answers; what it lists may be old."""

    cluster_id: int
    members: tuple[Member, ...]


Sight = Silent | Report | Running


def report_of(cluster: str, facts: Facts) -> Report:
    """What a member tells of itself."""
    promised = facts.promises[-1].token if facts.promises else None
    return Report(cluster, facts.member, facts.volume, promised, decided=facts.phase is Phase.NEW)


def encode_report(report: Report) -> bytes:
    """As the body of an answer."""
    fields = {
        "cluster": report.cluster,
        "member": report.member,
        "volume": report.volume,
        "promised": report.promised,
        "decided": report.decided,
    }
    return json.dumps(fields).encode()


def decode_report(body: bytes) -> Report:
    """
    The report in an answer.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = json.loads(body)
        promised = fields["promised"]
        return Report(
            str(fields["cluster"]),
            str(fields["member"]),
            str(fields["volume"]),
            None if promised is None else str(promised),
            fields["decided"] is True,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a report: {error!r}") from error


def decode_members(body: bytes) -> tuple[Member, ...]:
    """
    The members in an answer of etcd's peer address (``/members``).

    Raises:
        ValueError: it is none.
    """
    try:
        return tuple(
            Member(
                int(fields["id"]),
                str(fields.get("name", "")),
                tuple(fields["peerURLs"]),
                tuple(fields.get("clientURLs") or ()),
            )
            for fields in json.loads(body)
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a list of members: {error!r}") from error
