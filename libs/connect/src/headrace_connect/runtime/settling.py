"""
Decides what tasks that are gone have prepared: dead letters of a sink whose target keeps positions.

A task settles what an earlier one of its number left. Where there will be none, because the connector has fewer tasks
now or is about to be deleted, the watcher, or who deletes it, does that. Who inserts the token into the target first
decides, so a task that is still there all the same loses nothing: it finds its token settled, and writes again.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from headrace.errors import AlreadyDecided
from headrace_connect.core.names import dead_letters_id
from headrace_connect.plugin import Guarantee, Sink
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.config import SinkConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.ports import Prepared

_log = logging.getLogger(__name__)


async def settle_left(prepared: Prepared, cluster: str, configured: Configured, first: int) -> int:
    """
    Decide what tasks from ``first`` on of a sink have prepared, as its target says; how many there were. Of a sink that
    has no dead letters any more, what any task has.

    Raises:
        Exception: of the sink or of the cluster; what was not decided by then is there the next time.
    """
    config, plugin = configured.config, configured.plugin
    if not (issubclass(plugin, Sink) and plugin.guarantee is Guarantee.POSITIONS):
        return 0
    assert isinstance(config, SinkConfig), "it is a sink's"
    name, first = config.name, first if config.errors_deadletterqueue_topic_name else 0
    left = [token for id_, token in await prepared.find() if is_of(id_, cluster, name, first)]
    if not left:
        return 0
    calls = Calls(configured.make())
    sink = cast("Sink[Any]", calls.connector)
    try:
        await calls.call(sink.start)
        for token in left:
            commit = await calls.call(sink.settle, token)
            try:
                await prepared.decide(token, commit=commit)
            except AlreadyDecided as error:  # by hand, against the target
                _log.warning("dead letters of %s: %s", name, error)
    finally:
        await calls.stop()
    _log.info("dead letters of tasks of %s that are gone were decided in %d transactions", name, len(left))
    return len(left)


def is_of(transactional_id: str, cluster: str, connector: str, first: int) -> bool:
    """Whether it is of the dead letters of a task of this connector, and its number is ``first`` or more."""
    before = dead_letters_id(cluster, connector, 0)[:-1]
    number = transactional_id.removeprefix(before)
    return transactional_id.startswith(before) and number.isdigit() and int(number) >= first
