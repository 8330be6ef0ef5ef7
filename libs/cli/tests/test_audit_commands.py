"""What ``headrace audit`` says where there is no audit to read."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_cli.commands.audit import tail
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session
from headrace_common.core.errors import UnknownTopicOrPartition


def test_a_cluster_without_the_topic_of_the_audit_says_where_to_look() -> None:
    def partitions_for(topic: str) -> Any:
        raise UnknownTopicOrPartition(f"topic {topic!r} does not exist; create it with: headrace topic create")

    consumer = SimpleNamespace(partitions_for=partitions_for)
    session = cast("Session", SimpleNamespace(consumer=lambda: nullcontext(consumer)))
    with pytest.raises(CommandFailed, match="no topic __audit") as caught:
        tail(session)
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    assert "create it" not in str(caught.value), "nobody may"
    assert ".headrace/audit" in caught.value.hint
