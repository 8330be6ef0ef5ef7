"""Changes the positions that the target of a stopped sink has."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.records import TopicPartition
from headrace_connect.plugin import Sink
from headrace_connect.runtime.adapters.topic_reader import find_partitions
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.config import SinkConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.seating import Process


async def rewind(
    configured: Configured, process: Process, positions: Mapping[TopicPartition, int | None], *, forget_others: bool
) -> int:
    """
    Have the target say other positions; of how many partitions. Holders of before commit nothing any more.

    Args:
        positions: None: it does not know the partition any more.
        forget_others: also all other partitions that the sink reads and that are there.

    Raises:
        InvalidConfig: the target cannot do that, and nothing was changed.
        HeadraceError: the cluster does not answer, and nothing was changed.
        Exception: of the sink; nobody knows whether they were changed.
    """
    config = configured.config
    assert isinstance(config, SinkConfig), "it is a sink's"
    others = await find_partitions(process.topics, config) if forget_others else []
    wanted = {**dict.fromkeys(others), **positions}
    if not wanted:
        return 0
    calls = Calls(configured.make())
    sink = calls.connector
    assert isinstance(sink, Sink), "its configuration is a sink's"
    try:
        await calls.call(sink.start)
        await calls.call(sink.rewind, wanted)
    finally:
        await calls.stop()
    return len(wanted)
