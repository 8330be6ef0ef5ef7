"""Requests and answers about rules and keys, as the messages of the ``Controller`` service."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.principal import parse_principal
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.scram import Verifier
from headrace_common.core.errors import Rejected
from headrace_common.rpc.convert_access import grant_from_proto, key_to_proto, shift_to_proto
from headrace_controller.engine.access import Altered
from headrace_controller.engine.keys import NewKey, WantedKey
from headrace_controller.engine.logins import Step
from headrace_proto.v1 import access_pb2 as pb


def mode(word: str) -> Mode | None:
    """
    The mode that is asked for; None: as it is.

    Raises:
        Rejected: there is no such mode.
    """
    if not word:
        return None
    for one in Mode:
        if one.name.lower() == word:
            return one
    raise Rejected(f"there is no mode {word[:80]!r}; there are {', '.join(one.name.lower() for one in Mode)}")


def altered(batch: Altered) -> pb.AlterAccessResponse:
    return pb.AlterAccessResponse(
        generation=batch.generation, shifts=map(shift_to_proto, batch.shifts), more=batch.more
    )


def wanted_key(request: pb.CreateKeyRequest) -> WantedKey:
    """
    Raises:
        Rejected: nobody can have such a key.
    """
    return WantedKey(
        owner=parse_principal(request.owner) if request.owner else None,
        lifetime_ms=request.lifetime_ms,
        scope=scope_of(map(grant_from_proto, request.scope)) if request.scope else None,
        note=request.note,
    )


def new_key(made: NewKey) -> pb.CreateKeyResponse:
    return pb.CreateKeyResponse(key=made.text, description=key_to_proto(made.key, configured=False))


def verifiers(given: Iterable[pb.ScramVerifier]) -> list[Verifier]:
    """
    Raises:
        Rejected: one of them cannot be.
    """
    return [Verifier(one.mechanism, one.salt, one.iterations, one.stored_key, one.server_key) for one in given]


def step(said: Step) -> pb.LoginResponse:
    return pb.LoginResponse(
        message=said.message,
        exchange_id=said.exchange_id,
        made=None if said.made is None else new_key(said.made),
    )
