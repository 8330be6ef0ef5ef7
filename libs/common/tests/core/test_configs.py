"""What a setting that is refused says."""

from __future__ import annotations

import pytest

from headrace_common.core.configs import check_topic_configs
from headrace_common.core.errors import InvalidConfig


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("min.insync.replicas", "0", "1 to 2147483647"),
        ("retention.ms", "-2", "-1 to 9223372036854775807"),
    ],
)
def test_bounds_are_written_as_one_would_type_them(name: str, value: str, bounds: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} takes {bounds}, not {value}"):
        check_topic_configs({name: value})
