"""Which task reads which splits: about equally many each, and a split stays where it is if that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def share(splits: Sequence[str], tasks_max: int, before: Mapping[str, int] | None = None) -> list[list[str]]:
    """
    The splits of each task; as many tasks as have something to do, at most ``tasks_max``.

    Args:
        before: split -> its task so far.
    """
    count = min(tasks_max, len(splits))
    shares: list[list[str]] = [[] for _ in range(count)]
    if not count:
        return shares
    least, more = divmod(len(splits), count)
    homeless: list[str] = []
    for split in splits:
        task = (before or {}).get(split, -1)
        if 0 <= task < count and len(shares[task]) < least + (more > 0):
            shares[task].append(split)
        else:
            homeless.append(split)
    for split in homeless:
        min(shares, key=len).append(split)
    while max(map(len, shares)) > min(map(len, shares)) + 1:
        min(shares, key=len).append(max(shares, key=len).pop())
    return shares
