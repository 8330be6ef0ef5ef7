"""
One work group: its members say what is to be done, the coordinator says who does what. Nothing here knows of topics.

``assigned_group`` moves items from member to member as it moves partitions; ``work_targets`` says where. Besides:

* **Declarations.** What is to be done is what the newest declaration of a member that is there says: the one of the
  highest version, or where members give none the one that was declared last. Each has a serial number, which is
  counted as epochs of items are, so that it never comes twice. What a declaration calls its *terms* holds for all who
  are there: one that says something else is refused.
* **Epochs of items.** Whoever gets an item has a higher epoch of it than every owner before, in this group and in those
  that had its name; and a token that is higher still, of which a member tells, is passed. They go by the clock in ms,
  see ``floors``, and are apart from the group's epoch, which has 31 bits.
* **What was left open.** The transactional id of a member that is put out is told to those who get its items, until one
  of them has said that nothing is open under it any more.

``work_requests`` says what the members' requests mean; ``shard.Shard`` asks the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace_common.core.errors import HeadraceError, InconsistentGroupProtocol, Rejected
from headrace_coordinator.core.assigned_group import AssignedGroup
from headrace_coordinator.core.binary import readable
from headrace_coordinator.core.effects import (
    Follower,
    GivenItem,
    GroupDescription,
    ItemDescription,
    MemberDescription,
    WorkShare,
    WorkStanding,
)
from headrace_coordinator.core.floors import item_epoch_by_clock
from headrace_coordinator.core.reconcile import Ownership
from headrace_coordinator.core.records import WorkMemberRecord, WorkRecord, cut_declaration, declaration_key
from headrace_coordinator.core.values import Declaration, GroupProtocol, Moment
from headrace_coordinator.core.work_members import WorkMember
from headrace_coordinator.core.work_targets import make_plan

LEFT_MAX: Final = 1_000
"""Transactional ids of members that were put out; of more the oldest are forgotten, and end by their own timeout."""
LEFT_ITEMS_MAX: Final = 40_000
"""So with what they had, all together."""


@dataclass(slots=True, eq=False)
class WorkGroup(AssignedGroup[str, WorkMember]):
    """See the module's text."""

    _ownership: Ownership[str] = field(default_factory=lambda: Ownership(singly=True))
    item_epoch: int = 0
    """The highest that an item, or the serial number of a declaration, ever had."""
    declarations: dict[int, Declaration] = field(default_factory=dict)
    """By serial number: those of the members; without members the last that counted."""
    left: dict[str, frozenset[str]] = field(default_factory=dict)
    """Transactional ids of members that were put out -> what they had, the oldest first."""
    awaited: dict[str, str] = field(default_factory=dict)
    """Item -> who is to take it over when it has caught up."""
    _parts: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """Of declarations, as they stand in records."""

    # --- what others ask --------------------------------------------------------------------------------------

    def subscribes(self, topic: str) -> bool:
        """Whether its positions in the topic are in use: while there are members, all are."""
        del topic
        return bool(self.members)

    @property
    def current(self) -> int:
        """The serial number of the declaration that counts; 0: nothing was declared."""
        return max(self.declarations, key=lambda serial: (self._number(serial), serial), default=0)

    def _number(self, serial: int) -> int:
        """Of two declarations that with the higher one is newer."""
        version = self.declarations[serial].version
        return serial if version is None else version

    def describe(self) -> GroupDescription:
        members = tuple(
            MemberDescription(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_address=m.client_address,
                member_epoch=m.epoch,
                state=m.state.name,
                topics=(),
                pattern=None,
                assigned=(),
                process_id=m.process_id,
                endpoint=m.endpoint,
                zone=m.zone,
                transactional_id=m.transactional_id,
            )
            for m in self.members.values()
        )
        return GroupDescription(
            self.group_id,
            GroupProtocol.WORK,
            self.state,
            self.group_epoch,
            self.group_epoch,
            "",
            members,
            tuple(self._describe_items()),
            self._list_terms(),
        )

    def _list_terms(self) -> dict[str, str]:
        """What the members agree on."""
        serials = sorted({m.declaration for m in self.members.values()})
        return {name: said for serial in serials for name, said in self.declarations[serial].terms.items()}

    def _describe_items(self) -> Iterable[ItemDescription]:
        current = self.declarations.get(self.current)
        if current is None:
            return
        owners = {item: m for m in self.members.values() for item in m.held}
        followers: dict[str, list[Follower]] = {}
        for m in self.members.values():
            for item in sorted(m.standby | m.warm_up):
                one = Follower(m.member_id, item in m.warm_up, m.lags.get(item))
                followers.setdefault(item, []).append(one)
        for id, declared in current.items.items():
            owner = owners.get(id)
            epoch = 0 if owner is None else owner.epochs[id]
            name = None if owner is None else owner.member_id
            yield ItemDescription(declared, name, epoch, tuple(followers.get(id, ())))

    # --- what members say -------------------------------------------------------------------------------------

    def declare(self, declaration: Declaration, at: Moment, own: Iterable[WorkMember] = ()) -> int | HeadraceError:
        """
        The serial number of what a member declares, which is known from now on; or why it cannot be declared.

        Args:
            own: the member itself, and whom it replaces: they need not agree with it.
        """
        fault = self._find_contradiction(declaration, own)
        if fault is not None:
            return fault
        for serial, known in self.declarations.items():
            if known == declaration:
                return serial
        for serial in {m.declaration for m in self.members.values()}:
            known = self.declarations[serial]
            if known.fingerprint == declaration.fingerprint:
                return Rejected(
                    f"fingerprint {known.fingerprint!r} was declared with something else; a declaration that differs "
                    "in anything has another fingerprint"
                )
            if known.version is not None and known.version == declaration.version:
                return Rejected(
                    f"version {known.version} was declared with another fingerprint; give each version once"
                )
        serial = self._next_epoch(at)
        self.declarations[serial] = declaration
        self._parts[serial] = cut_declaration(declaration)
        self.dirty = True
        return serial

    def _find_contradiction(self, declaration: Declaration, own: Iterable[WorkMember]) -> HeadraceError | None:
        """Whether a member that is there has other terms."""
        if not declaration.terms:
            return None
        gone = {m.member_id for m in own}
        for serial in {m.declaration for m in self.members.values() if m.member_id not in gone}:
            theirs = self.declarations[serial].terms
            for name in sorted(theirs.keys() & declaration.terms.keys()):
                if theirs[name] != declaration.terms[name]:
                    return InconsistentGroupProtocol(
                        f"members of the group say that {name} is {theirs[name]}, and this one says that it is "
                        f"{declaration.terms[name]}: they cannot share work; stop those that are there first"
                    )
        return None

    def take_lags(self, member: WorkMember, lags: Mapping[str, int]) -> bool:
        """How far behind the member is; returns whether it has caught up with what it is to take over."""
        member.lags = lags
        acceptable = self.declarations[self.current].acceptable_recovery_lag
        return any(
            self.awaited.get(item) == member.member_id and not member.is_behind(item, acceptable) for item in lags
        )

    def pass_tokens(self, member: WorkMember, refused: Iterable[tuple[str, int]], at: Moment) -> None:
        """The member has met higher tokens than the epochs of its items: it gets epochs above them."""
        for item, token in sorted(refused):
            if item in member.assigned and token >= member.epochs[item]:
                self.item_epoch = max(self.item_epoch, token)
                self.granted(member, frozenset({item}), at)

    def forget_left(self, ended: Iterable[str]) -> None:
        """Nothing is open any more under these ids."""
        for transactional_id in ended:
            items = self.left.pop(transactional_id, None)
            if items is not None:
                self.dirty = True
                self._news_of(m for m in self.members.values() if not items.isdisjoint(m.assigned))

    def put_out(self, member: WorkMember, error: HeadraceError) -> None:
        """Tell the member that it is out, if it is there, before it is forgotten."""
        stream = self.streams.of(member.member_id)
        if stream is not None:
            self.send(stream, self.make_refusal(error, member.member_id))
            self.close(stream)

    def forgotten(self, member: WorkMember) -> None:
        if member.transactional_id and member.held:
            self.left.pop(member.transactional_id, None)
            self.left[member.transactional_id] = member.held
            count = sum(map(len, self.left.values()))
            while len(self.left) > LEFT_MAX or (count > LEFT_ITEMS_MAX and len(self.left) > 1):
                count -= len(self.left.pop(next(iter(self.left))))

    def patience_ms(self, member: WorkMember) -> int:
        """Without a stream only the grace counts: what a process left behind does not come back with its name."""
        bound = self.streams.of(member.member_id) is not None
        return self.settings.group_consumer_session_timeout_ms if bound else self.settings.group_rejoin_grace_ms

    # --- who does what ----------------------------------------------------------------------------------------

    def granted(self, member: WorkMember, keys: frozenset[str], at: Moment) -> None:
        """The member's epochs of these are above all before."""
        member.epochs = {item: epoch for item, epoch in member.epochs.items() if item in member.held}
        member.epochs.update(dict.fromkeys(keys, self._next_epoch(at)))
        self.dirty = True
        self._news_of((member,))

    def _next_epoch(self, at: Moment) -> int:
        self.item_epoch = max(self.item_epoch + 1, item_epoch_by_clock(at))
        return self.item_epoch

    def _news_of(self, members: Iterable[WorkMember]) -> None:
        for member in members:
            member.untold = True
            self._news[member.member_id] = None

    def make_targets(self) -> Mapping[str, frozenset[str]]:
        self._drop_declarations()
        if not self.members:
            self.awaited = {}
            return {}
        known = {serial: declaration.items.keys() for serial, declaration in self.declarations.items()}
        plan = make_plan(self.declarations[self.current], self.members, known, self.awaited)
        self.awaited = plan.awaited
        targets: dict[str, set[str]] = {member_id: set() for member_id in self.members}
        for item, member_id in plan.owners.items():
            targets[member_id].add(item)
        for member_id, member in self.members.items():
            standby, warm_up = frozenset(plan.standby[member_id]), frozenset(plan.warm_up[member_id])
            if (standby, warm_up) != (member.standby, member.warm_up):
                member.standby, member.warm_up = standby, warm_up
                self._news_of((member,))
        return {member_id: frozenset(items) for member_id, items in targets.items()}

    def _drop_declarations(self) -> None:
        """Those of no member; the last stays, so that a group without members says what there is to do."""
        used = {m.declaration for m in self.members.values()} or {self.current}
        self.declarations = {serial: one for serial, one in sorted(self.declarations.items()) if serial in used}
        self._parts = {serial: self._parts[serial] for serial in self.declarations}

    # --- what is told -----------------------------------------------------------------------------------------

    def is_fresh(self, member: WorkMember) -> None:
        member.told = None

    def has_news(self, member: WorkMember) -> bool:
        return member.untold or member.told is not member.assigned or member.told_epoch != member.epoch

    def make_refusal(self, error: HeadraceError, member_id: str) -> WorkStanding:
        return WorkStanding(error, member_id)

    def make_standing(self, member: WorkMember, *, whole: bool) -> WorkStanding:
        whole = whole or member.untold or member.told is not member.assigned
        member.told, member.told_epoch, member.untold = member.assigned, member.epoch, False
        return WorkStanding(
            error=None,
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.settings.group_consumer_heartbeat_interval_ms,
            session_timeout_ms=self.settings.group_consumer_session_timeout_ms,
            share=self._make_share(member) if whole else None,
            current_declaration=self._number(self.current),
            own_declaration=self._number(member.declaration),
        )

    def _make_share(self, member: WorkMember) -> WorkShare:
        unended: dict[str, list[str]] = {}
        for transactional_id, items in self.left.items():
            for item in items & member.assigned:
                unended.setdefault(item, []).append(transactional_id)
        active = tuple(
            GivenItem(item, member.epochs[item], tuple(unended.get(item, ()))) for item in sorted(member.assigned)
        )
        return WorkShare(active, tuple(sorted(member.standby)), tuple(sorted(member.warm_up)))

    # --- durable state ----------------------------------------------------------------------------------------

    def declaration_rows(self) -> dict[bytes, bytes]:
        """The records of the declarations that the group's own refers to."""
        return {
            declaration_key(self.group_id, serial, at): part
            for serial, parts in self._parts.items()
            for at, part in enumerate(parts)
        }

    def record(self) -> WorkRecord:
        """The durable state, without the declarations themselves."""
        declared = self._list_declared()
        others = sorted(self._list_items().difference(declared))
        listed = [*declared, *others]
        places = {item: at for at, item in enumerate(listed)}

        def find(items: Iterable[str]) -> tuple[int, ...]:
            return tuple(sorted([places[item] for item in items]))

        members = tuple(
            WorkMemberRecord(
                *(m.member_id, m.instance_id, m.client_id, m.client_address, m.rebalance_timeout_ms),
                *(m.process_id, m.endpoint, m.zone, m.transactional_id),
                *(m.declaration, m.epoch, m.previous_epoch, m.state),
                (assigned := find(m.assigned)),
                (revoking := find(m.revoking)),
                tuple([m.epochs[listed[at]] for at in (*assigned, *revoking)]),
                *(find(m.target), find(m.standby), find(m.warm_up)),
            )
            for m in self.members.values()
        )
        return WorkRecord(
            self.group_epoch,
            self.item_epoch,
            self.empty_since_ms,
            tuple((serial, len(parts)) for serial, parts in sorted(self._parts.items())),
            tuple(others),
            tuple((transactional_id, find(items)) for transactional_id, items in self.left.items()),
            tuple(sorted((places[item], member_id) for item, member_id in self.awaited.items())),
            members,
        )

    def _list_declared(self) -> list[str]:
        """Each item once, in the order of declarations."""
        return list(dict.fromkeys(item for _, one in sorted(self.declarations.items()) for item in one.items))

    def _list_items(self) -> set[str]:
        """All that the record names."""
        items = set(self.awaited).union(*self.left.values())
        for m in self.members.values():
            items |= m.held | m.target | m.standby | m.warm_up
        return items

    @readable("the record of a work group")
    def restore(self, record: WorkRecord, declarations: Mapping[int, Declaration], at: Moment) -> None:
        """Take over the state of a record, to serve it from now on: every member has a full session."""
        assert not self.members, "a group is restored once"
        self.group_epoch, self.item_epoch = record.group_epoch, record.item_epoch
        self.empty_since_ms = record.empty_since_ms
        self.declarations = dict(declarations)
        self._parts = {serial: cut_declaration(declaration) for serial, declaration in declarations.items()}
        listed = [*self._list_declared(), *record.others]

        def find(places: Iterable[int]) -> frozenset[str]:
            return frozenset([listed[place] for place in places])

        self.left = {transactional_id: find(places) for transactional_id, places in record.left}
        self.awaited = {listed[place]: member_id for place, member_id in record.awaited}
        for m in record.members:
            member = WorkMember(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_address=m.client_address,
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                process_id=m.process_id,
                endpoint=m.endpoint,
                zone=m.zone,
                transactional_id=m.transactional_id,
                declaration=m.declaration,
                epoch=m.epoch,
                previous_epoch=m.previous_epoch,
                state=m.state,
                assigned=find(m.assigned),
                revoking=find(m.revoking),
                epochs={listed[at]: epoch for at, epoch in zip((*m.assigned, *m.revoking), m.epochs, strict=True)},
                target=find(m.target),
                standby=find(m.standby),
                warm_up=find(m.warm_up),
                owned=None,
                unconfirmed=find(m.assigned),
            )
            self.restore_member(member, at)
        self.schedule()
