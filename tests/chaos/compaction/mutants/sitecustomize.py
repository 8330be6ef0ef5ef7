"""
Breaks the broker that loads this, in the way that ``HEADRACE_MUTANT`` names: the judge must see it.

It is on the path of such brokers alone (``compaction_mutants.launchers``).
"""

import os
from dataclasses import replace


def deletions_at_once() -> None:
    """A deletion goes with the first compaction, whatever delete.retention.ms says."""
    from headrace_broker.core.compaction import rules

    rules.find_passed_end = lambda points, now_ms, retention_ms: max(point.end for point in points)


def aborted_count() -> None:
    """What was aborted counts as the newest record of its key."""
    from headrace_broker.core.compaction.rules import AbortedRecords

    AbortedRecords.hold = lambda self, row: False


def newest_goes() -> None:
    """Of batches that lose a record the last one goes too."""
    from headrace_broker.core.compaction.cleaning import Cleaning

    newest = Cleaning._newest

    def one_less(self: Cleaning, row: object, decoded: object) -> object:
        keep = newest(self, row, decoded)
        if keep.any() and not keep.all():
            keep[keep.nonzero()[0][-1]] = False
        return keep

    Cleaning._newest = one_less


def no_lag() -> None:
    """min.compaction.lag.ms is not heeded."""
    from headrace_common.core.configs import TopicConfig

    effective = TopicConfig.effective
    TopicConfig.effective = staticmethod(lambda own, cluster: replace(effective(own, cluster), compaction_lag_ms_min=0))


def impatient_retention() -> None:
    """Retention takes half of retention.ms for all of it."""
    from headrace_common.core.configs import TopicConfig

    effective = TopicConfig.effective

    def half(own: object, cluster: object) -> TopicConfig:
        config = effective(own, cluster)
        return replace(config, retention_ms=config.retention_ms // 2 if config.retention_ms > 0 else -1)

    TopicConfig.effective = staticmethod(half)


MUTANTS = {
    mutant.__name__.replace("_", "-"): mutant
    for mutant in (deletions_at_once, aborted_count, newest_goes, no_lag, impatient_retention)
}

if os.environ.get("HEADRACE_MUTANT"):
    MUTANTS[os.environ["HEADRACE_MUTANT"]]()
