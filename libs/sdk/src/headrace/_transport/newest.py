"""
Which metadata is newer than what was seen.

Revisions count within one incarnation of a cluster's metadata. Metadata that was restored from a backup into a new etcd
counts from the beginning; who compared revisions alone would hold what it says for old for weeks.
"""

from __future__ import annotations

from headrace_proto.v1 import broker_pb2 as pb


class Newest:
    """What the newest answer was from. One per client and use; no I/O."""

    def __init__(self) -> None:
        self._cluster_id = ""
        self._incarnation = b""
        self._revision = -1
        self.feature_level = 0
        """The cluster's; a broker of a version before there were levels tells none, and takes none away."""

    def is_behind(self, answer: pb.MetadataResponse) -> bool:
        """Whether who answers knows less than what was seen; then nothing of it is to be believed."""
        return answer.revision < self._revision and not self.is_another(answer)

    def is_another(self, answer: pb.MetadataResponse) -> bool:
        """Another cluster, or restored metadata: epochs and revisions of before do not compare with its own."""
        if answer.cluster_id != self._cluster_id:
            return True
        return bool(answer.incarnation and self._incarnation) and answer.incarnation != self._incarnation

    def take(self, answer: pb.MetadataResponse) -> None:
        """It is the newest now. One of a broker that tells no incarnation is of the one that is known."""
        known = 0 if self.is_another(answer) else self.feature_level
        self.feature_level = max(known, answer.feature_level)
        if answer.cluster_id != self._cluster_id or answer.incarnation:
            self._incarnation = answer.incarnation
        self._cluster_id, self._revision = answer.cluster_id, answer.revision
