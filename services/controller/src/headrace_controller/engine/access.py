"""
Changes of who may do what, and of the mode, for one term of the active controller.

Each batch is one transaction: it compares the row ``state`` and writes it with the next generation, so what was decided
about it holds when it is written. The row has a mark of its batch: where an answer was lost, it says whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from headrace_common.core.access.changes import Change
from headrace_common.core.access.control import Rights
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.gains import Shift
from headrace_common.core.access.principal import Grantee, PrincipalType
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.access.review import can_change_rules, plan
from headrace_common.core.access.rows import STATE, Mode, View, changed_rows, read_state, write_state
from headrace_common.core.access.state import Access
from headrace_common.core.errors import ErrorCode, Rejected
from headrace_common.core.features import ACCESS
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_secret, new_uuid
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.configured import AccessSettings, due_producer_key
from headrace_controller.core.store import OPERATIONS_MAX, TRANSACTION_BYTES_MAX, Transaction
from headrace_controller.engine.access_rows import AccessRows, RowChange, asked_by, tell_rows
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import Decision, Writer

ROWS_MAX: Final = OPERATIONS_MAX - 1
"""In one transaction beside ``state``."""
_ROWS_BYTES_MAX: Final = TRANSACTION_BYTES_MAX - 1_000
"""The comparisons take a little, too."""
_NAMED_IN_LOG: Final = 20
_OF_TOKENS: Final = frozenset({PrincipalType.OIDC, PrincipalType.SERVICE_ACCOUNT, PrincipalType.GROUP})

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Altered:
    """A batch that was made, or could be."""

    generation: int
    shifts: tuple[Shift, ...]
    more: bool
    """There are more shifts."""


class AccessChanges:
    """Rules, roles, blocks and the mode during one term."""

    def __init__(self, writer: Writer, follower: Follower, clock: Clock, settings: AccessSettings) -> None:
        self._writer = writer
        self._follower = follower
        self._rows = AccessRows(follower)
        self._clock = clock
        self._settings = settings
        self._unreadable = ""
        self._looked = False

    async def configure(self) -> None:
        """
        Bring super users, the keys of files and the mode to what this controller's settings say. It compares, it does
        not remember. Below the level of access nothing happens: until then older nodes ask nobody who calls, so a
        cluster that is set to be closed is so from its level on. A new one has it from its first moment.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        changed = await self._writer.decide(self._configuration)
        if (changed or not self._looked) and self._follower.mirror.image.has(ACCESS):
            self._looked = True
            view = self._follower.access
            if changed:
                extra = {"mode": view.mode.name.lower(), "super_users": sorted(map(str, view.access.super_users))}
                log.info("access is as the settings say", extra=extra)
            if view.mode is Mode.CLOSED and not self._can_be_changed(view, view.access):
                log.error(
                    "the cluster is closed, and there is no key of anybody who can change rules: give controllers "
                    "an admin_key_file, or run python -m headrace_controller.breakglass"
                )

    async def alter(
        self, changes: Sequence[Change], mode: Mode | None, rights: Rights, *, validate_only: bool
    ) -> Altered:
        """
        Make a batch of changes and raise the mode, all or nothing.

        Args:
            mode: None: it stays.

        Raises:
            Rejected, NotFound, Conflict, Denied: as ``review.plan``; the mode would fall, or cannot be had; or the rows
                do not fit into one transaction. Nothing was changed.
            UnsupportedVersion: below the level of access, or rules are there that this version cannot read.
            HeadraceError: as ``Writer.decide``.
        """
        answer = Altered(0, (), more=False)
        changed: list[RowChange] = []

        def decision() -> Decision | None:
            nonlocal answer, changed
            view = self._rows.view()
            planned = plan(view.access, changes, asked_by(view, rights))
            rows = changed_rows(view.access, planned.after)
            risen = self._raise_mode(view, planned.after, mode, rights)
            answer = Altered(view.access.generation, planned.shifts, planned.more)
            if not rows and risen is view.mode:
                return None
            rows |= due_producer_key(self._follower.mirror.image.access, risen, new_secret)
            check_fits(rows)
            if not validate_only:
                answer = Altered(planned.after.generation, planned.shifts, planned.more)
            state = write_state(risen, planned.after.generation, new_uuid())
            changed = self._rows.compare({**rows, STATE: state})
            return self._decide_rows({**rows, STATE: state})

        if validate_only:
            decision()
        elif await self._writer.decide(decision):
            named = [str(shift.grantee) for shift in answer.shifts[:_NAMED_IN_LOG]]
            extra = {"by": str(rights.caller.principal), "generation": answer.generation, "principals": named}
            log.info("access was changed", extra=extra)
            tell_rows(changed)
        return answer

    def _configuration(self) -> Decision | None:
        image = self._follower.mirror.image
        if not image.has(ACCESS):
            return None
        try:
            mode = max(read_state(image.access)[0], self._settings.mode)
            due = self._settings.due_rows(image.access) | due_producer_key(image.access, mode, new_secret)
        except Rejected as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                log.error("access stays as it is, whatever the settings say", extra={"reason": str(error)})
            return None
        return self._decide_rows(due) if due else None

    def _raise_mode(self, view: View, after: Access, mode: Mode | None, rights: Rights) -> Mode:
        if mode is None or mode is view.mode:
            return view.mode
        if mode < view.mode:
            raise Rejected(
                f"the cluster is {view.mode.name.lower()}, and that never falls. On a controller's host "
                "python -m headrace_controller.breakglass --mode permissive goes back"
            )
        by = asked_by(view, rights)
        asked = (Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        if by is not None and not Decisions(view.access).standing(by).decide(*asked):
            raise rights.refusal(*asked)
        if mode is Mode.CLOSED and not self._settings.nodes_proven:
            raise Rejected(
                "a cluster is closed only if nodes prove what they are: give all of them certificates (tls_cert), or a "
                "node_token_file with node_token_demanded, and start them anew",
                code=ErrorCode.POLICY_VIOLATION,
            )
        if mode is Mode.CLOSED and not self._can_be_changed(view, after):
            raise Rejected(
                "nobody could change rules after this: make a key, without a scope, of somebody who has the role "
                "security or superuser, for example headrace key create --owner User:NAME",
                code=ErrorCode.POLICY_VIOLATION,
            )
        return mode

    def _can_be_changed(self, view: View, access: Access) -> bool:
        """Whether somebody who can change rules has a key, or is named by tokens of an issuer."""
        now_ms = self._clock.now_ms()
        able: set[Grantee] = {key.owner for key in view.keys.values() if key.scope is None and not key.expired(now_ms)}
        able |= {user.principal for user in view.users.values()}  # who logs in gets a key
        if view.issuers:
            known = chain(access.super_users, access.bindings, access.rules)
            able |= {one for one in known if one.type in _OF_TOKENS}
        return any(can_change_rules(access, one) for one in able)

    def _decide_rows(self, rows: Mapping[str, bytes]) -> Decision:
        return Decision(records.access_operations(rows), (self._rows.unchanged(STATE),))


def check_fits(rows: Mapping[str, bytes]) -> None:
    """
    Whether these rows can be written in one transaction beside ``state``.

    Raises:
        Rejected: they cannot.
    """
    if len(rows) > ROWS_MAX:
        raise Rejected(
            f"the changes are about {len(rows)} principals and roles; {ROWS_MAX} are the most in one batch, which is "
            "made whole or not at all: send them in parts"
        )
    size = Transaction((), records.access_operations(rows)).size
    if size > _ROWS_BYTES_MAX:
        raise Rejected(
            f"the rules of those whom the changes are about have {size} bytes together; {_ROWS_BYTES_MAX} are the most "
            "in one batch: send it in parts, or give rights by roles and prefixes instead of by single names"
        )
