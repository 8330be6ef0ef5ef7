"""Owners of units in the cluster in memory: who decides many prepared transactions as one. Part of its coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import FencedOwner, Rejected, TransactionAbortable
from headrace_proto.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from libs.sdk.tests.twin.memory_coordinator import MemoryTransactions


@dataclass(slots=True)
class _Owner:
    epoch: int = -1
    last_sequence: int = -1
    claim: int = -1
    claim_epoch: int = -1


class MemoryUnits:
    """All owners. Called with the coordinator's lock held, except where transports ask."""

    def __init__(self, transactions: MemoryTransactions) -> None:
        self._transactions = transactions
        self._owners: dict[str, _Owner] = {}

    def check(self, transactional_id: str, epoch: int | None) -> None:
        """Raises: ``Rejected``, ``FencedOwner``: whoever has this epoch may not use the id."""
        owner, slash, suffix = transactional_id.partition("/")
        if not slash:
            return
        if not 1 <= len(owner) <= 200 or not suffix:
            raise Rejected(f"transactional id {transactional_id!r} has a slash, so it is of the form owner/suffix")
        if epoch is None:
            raise Rejected(f"{transactional_id!r} belongs to owner {owner!r}; give owner_epoch")
        known = self._owners.get(owner)
        if known is None or epoch > known.epoch:
            raise Rejected(f"owner {owner!r} has no epoch {epoch}; InitOwner comes first")
        if epoch < known.epoch:
            raise FencedOwner(f"owner {owner!r} has epoch {known.epoch} by now")

    def init(self, request: pb.InitOwnerRequest) -> pb.InitOwnerResponse:
        """The caller is the owner from now on; with a new epoch what was undecided is aborted."""
        with self._transactions.lock:
            self._transactions.check()
            self._transactions.expire()
            if not 1 <= len(request.owner) <= 200 or "/" in request.owner:
                raise Rejected("an owner has 1 to 200 characters, and no '/'")
            claim = request.claim if request.HasField("claim") else None
            if claim is not None and claim < 0:
                raise Rejected(f"an owner is claimed with 0 or more, not {claim}")
            owner = self._owners.setdefault(request.owner, _Owner())
            if claim is None or claim > owner.claim:
                owner.epoch += 1
                self._transactions.abort_left(self._ids(request.owner))
                if claim is not None:
                    owner.claim, owner.claim_epoch = claim, owner.epoch
            elif claim < owner.claim or owner.claim_epoch < owner.epoch:
                raise FencedOwner(f"owner {request.owner!r} was claimed with {owner.claim}, {claim} is not higher")
            return pb.InitOwnerResponse(owner_epoch=owner.epoch, last_sequence=owner.last_sequence)

    def commit(self, request: pb.CommitUnitRequest) -> pb.CommitUnitResponse:
        """All of the unit's tokens, or none."""
        with self._transactions.lock:
            self._transactions.check()
            self._transactions.expire()
            if request.sequence < 0:
                raise Rejected(f"units are numbered from 0, not {request.sequence}")
            if len({token.transactional_id for token in request.tokens}) < len(request.tokens):
                raise Rejected("the unit names a transactional id twice; list each prepared transaction once")
            owner = self._owners.get(request.owner)
            if owner is None or request.owner_epoch > owner.epoch:
                raise Rejected(f"owner {request.owner!r} has no epoch {request.owner_epoch}; InitOwner comes first")
            if request.owner_epoch < owner.epoch:
                raise FencedOwner(f"owner {request.owner!r} has epoch {owner.epoch} by now")
            if request.sequence < owner.last_sequence:
                raise FencedOwner(f"unit {request.sequence}, after unit {owner.last_sequence}")
            repeated = request.sequence == owner.last_sequence
            if not repeated:
                listed = self._listed(request)
                owner.last_sequence = request.sequence
                self._transactions.decide_units((key, True) for key in listed)
            undecided = [key for key in self._ids(request.owner) if self._transactions.txns[key].token is not None]
            self._transactions.decide_units((key, False) for key in undecided)
            return pb.CommitUnitResponse(repeated_sequence=repeated)

    def _listed(self, request: pb.CommitUnitRequest) -> Sequence[str]:
        """The ids to commit; raises if one cannot be."""
        listed: list[str] = []
        for token in request.tokens:
            key = token.transactional_id
            if key.partition("/")[0] != request.owner or "/" not in key:
                raise Rejected(f"{key!r} is not an id of owner {request.owner!r}")
            txn = self._transactions.txns.get(key)
            if txn is not None and txn.token == token:
                listed.append(key)
            elif txn is None or txn.last is None or txn.last.nonce != token.nonce or not txn.last.commit:
                raise TransactionAbortable(f"{key!r} is not prepared under this token; nothing was committed")
        return listed

    def _ids(self, owner: str) -> list[str]:
        return [key for key in self._transactions.txns if key.startswith(f"{owner}/")]
