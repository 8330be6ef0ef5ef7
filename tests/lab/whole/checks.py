"""What must hold of what clients saw, whatever befell the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

Log = Sequence[tuple[int, bytes]]
"""Offsets and values of one partition, as a reader of committed records sees it."""


def problems(
    acknowledged: Sequence[tuple[bytes, int, int]],
    tried: Collection[bytes],
    logs: Mapping[int, Log],
    copies: Mapping[int, Log],
    read: Collection[bytes],
) -> list[str]:
    """
    All that is wrong.

    Args:
        acknowledged: value, partition, offset of what producers were told is written, in the order of sending.
        tried: values that producers gave away.
        logs: of the topic they wrote to, by partition.
        copies: of the topic to which its records were copied exactly once.
        read: values that the members of a group have read.
    """
    at = {(partition, offset): value for partition, log in logs.items() for offset, value in log}
    found = _misplaced(acknowledged, at)
    written = Counter(at.values())
    found += [f"{value!r} is there {count} times" for value, count in written.items() if count > 1]
    found += [f"{value!r} was never sent" for value in written if value not in tried]
    for partition, log in logs.items():
        found += _order(partition, [value for _, value in log])
    copied = Counter(value for log in copies.values() for _, value in log)
    found += [f"{value!r} was copied {count} times" for value, count in copied.items() if count > 1]
    found += [f"{value!r} was copied from nowhere" for value in copied if value not in written]
    found += [f"{value!r} was not copied" for value in written if value not in copied]
    found += [f"{value!r} was read by nobody in the group" for value in written if value not in read]
    return found


def problems_of_held(
    taken: Sequence[tuple[int, int]], acknowledged: Sequence[tuple[bytes, int, int]], log: Log
) -> list[str]:
    """
    All that is wrong with a partition that writers have taken from each other; they sent their tokens.

    Args:
        taken: tokens that were set, and at which offset.
        acknowledged: as for ``problems``.
        log: of the partition.
    """
    found = _misplaced(acknowledged, {(0, offset): value for offset, value in log})
    for token, at in taken:
        late = [value for offset, value in log if offset > at and int(value.split(b"-")[0]) < token]
        found += [f"{value!r} comes behind token {token} at {at}" for value in late]
    written = Counter(value for _, value in log)
    found += [f"{value!r} is there {count} times" for value, count in written.items() if count > 1]
    return found + _order(0, [value for _, value in log])


def _misplaced(acknowledged: Sequence[tuple[bytes, int, int]], at: Mapping[tuple[int, int], bytes]) -> list[str]:
    return [
        f"{value!r} was acknowledged at {partition}:{offset}, where {at.get((partition, offset))!r} is"
        for value, partition, offset in acknowledged
        if at.get((partition, offset)) != value
    ]


def _order(partition: int, values: Sequence[bytes]) -> list[str]:
    """Records of one producer are in the order of sending."""
    last: dict[bytes, int] = {}
    found = []
    for value in values:
        name, number = value.rsplit(b"-", 1)
        if int(number) < last.get(name, -1):
            found.append(f"{value!r} comes after {name!r}-{last[name]} in partition {partition}")
        last[name] = int(number)
    return found
