"""Work groups in ``world.World``: members that say what is asked of them, and what they are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.effects import GivenItem, WorkShare, WorkStanding
from headrace_coordinator.core.events import WorkHeartbeat
from headrace_coordinator.core.values import Declaration, WorkItem

from .world import G, World, code


def declare(
    *items: str | WorkItem,
    fingerprint: str | None = None,
    version: int | None = None,
    lag: int = 100,
    warmup: int = 2,
    terms: Mapping[str, str] | None = None,
) -> Declaration:
    """Items by their names, without state and of weight 1, or as they are given."""
    all_items = {i.id: i for i in (WorkItem(i) if isinstance(i, str) else i for i in items)}
    return Declaration(fingerprint or "+".join(all_items), version, all_items, lag, warmup, terms or {})


def stateful(*ids: str, standbys: int = 0, weight: int = 1) -> list[WorkItem]:
    return [WorkItem(id, weight, stateful=True, standbys=standbys) for id in ids]


class Workers(World):
    """Each stream is of one member; ``epoch`` and ``held`` are what it was told last."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.epochs: dict[str, int] = {}
        self.shares: dict[str, WorkShare] = {}
        self.declared = declare("x", "y", "z", "w")

    def work(
        self,
        stream: int,
        member_id: str,
        epoch: int | None = None,
        *,
        owned: Iterable[str] | None = None,
        declaration: Declaration | None = None,
        lags: Mapping[str, int] | None = None,
        refused: Mapping[str, int] | None = None,
        ended: Iterable[str] = (),
        instance: str | None = None,
        process: str | None = None,
        zone: str = "",
        tid: str = "",
        rebalance_ms: int | None = None,
        group: str = G,
    ) -> None:
        self.tell(
            WorkHeartbeat(
                group,
                stream,
                self.at,
                member_id,
                self.epochs[member_id] if epoch is None else epoch,
                instance_id=instance,
                process_id=process or member_id,
                endpoint=f"{member_id}:1",
                zone=zone,
                transactional_id=tid,
                rebalance_timeout_ms=rebalance_ms,
                declaration=declaration,
                owned=None if owned is None else frozenset(owned),
                lags=lags,
                refused=tuple((refused or {}).items()),
                ended=tuple(ended),
            )
        )

    def start(self, stream: int, member_id: str, declaration: Declaration | None = None, **more: object) -> WorkShare:
        """Join; what it is told to do."""
        self.work(stream, member_id, 0, owned=(), declaration=declaration or self.declared, **more)
        return self.news(stream, member_id)

    def news(self, stream: int, member_id: str) -> WorkShare:
        """What the member knows after what it was told over the stream."""
        for message in self.heard(stream):
            assert isinstance(message, WorkStanding), message
            assert message.error is None, message.error
            assert message.member_id == member_id
            assert message.member_epoch >= self.epochs.get(member_id, 0)
            self.epochs[member_id] = message.member_epoch
            if message.share is not None:
                self.shares[member_id] = message.share
        return self.shares[member_id]

    def agree(self, *streams: tuple[int, str], rounds: int = 6) -> None:
        """These members do what they are told, and say so, until nothing moves."""
        for _ in range(rounds):
            for stream, member_id in streams:
                self.news(stream, member_id)
                self.work(stream, member_id, owned=self.items(member_id))
        for stream, member_id in streams:
            self.news(stream, member_id)

    def items(self, member_id: str) -> list[str]:
        """What the member was told to do."""
        return [one.id for one in self.shares[member_id].active]

    def given(self, member_id: str, item: str) -> GivenItem:
        (found,) = (one for one in self.shares[member_id].active if one.id == item)
        return found

    def error(self, stream: int) -> ErrorCode:
        message = self.last(stream)
        assert isinstance(message, WorkStanding), message
        return code(message)
