"""What changes of access and of keys are decided from: the rows as they are, and whose rights are asked."""

from __future__ import annotations

from headrace_common.core.access.control import Rights
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.features import ACCESS, say_too_low
from headrace_controller.core import records
from headrace_controller.core.store import Unchanged
from headrace_controller.engine.follower import Follower


class AccessRows:
    """The rows of access, for whoever is about to change some."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def view(self) -> View:
        """
        All of them.

        Raises:
            UnsupportedVersion: below the level of access, or there are rows that this version cannot read.
        """
        image = self._follower.mirror.image
        if not image.has(ACCESS):
            raise UnsupportedVersion(say_too_low("saying who may do what", ACCESS, image.feature_level))
        view = self._follower.access
        if view.faults:
            raise UnsupportedVersion(
                f"there are rules that this controller cannot read, so it changes none: {view.faults[0]}; start the "
                "newer version of the controllers again"
            )
        return view

    def unchanged(self, row: str) -> Unchanged:
        """Compares that a row is as it is here."""
        key = records.access_key(row)
        return Unchanged(key, self._follower.mirror.mod_revision(key))


def asked_by(view: View, rights: Rights) -> Caller | None:
    """
    Whose rights are asked; None: nobody's, since the cluster is open. In mode permissive it is decided as in a closed
    cluster who may change rules and keys: they outlast the mode.
    """
    return None if view.mode is Mode.OPEN else rights.caller
