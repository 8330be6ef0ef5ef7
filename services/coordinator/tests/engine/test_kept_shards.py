"""Which shards a node keeps, and what it says of them before it knows."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import CoordinatorLoading
from headrace_common.core.ids import NodeId
from headrace_common.core.image import EMPTY_IMAGE, ShardKind
from headrace_coordinator.engine.kept_shards import KeptShards
from headrace_coordinator.engine.shard_host import ShardHost


def test_before_an_image_came_it_is_not_known_what_is_loading() -> None:
    def make(number: int, epoch: int) -> ShardHost:
        raise AssertionError("there is no shard")

    shards = KeptShards(ShardKind.GROUPS, NodeId(1), make)
    with pytest.raises(CoordinatorLoading):
        shards.list_loading()
    shards.settle(EMPTY_IMAGE)
    assert shards.list_loading() == []
