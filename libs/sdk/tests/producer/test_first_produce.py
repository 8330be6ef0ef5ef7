"""A producer of lists loads only what it needs: numpy, pyarrow and pandas take longer than most runs send."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

HEAVY = ("numpy", "pyarrow", "pandas")

PROGRAM = """
import sys
import headrace
from headrace_common.runtime.memory import adapt_to_large_blocks

with headrace.Producer(sys.argv[1], compression_type=sys.argv[2]) as producer:
    deliveries = [producer.send("t", b"%d" % n, key=b"k%d" % (n % 9) if n % 2 else None) for n in range(100)]
    mixed = [b"v" * (n % 7) for n in range(1_000)]
    keys = [None if n % 5 == 0 else b"key-%d" % n for n in range(1_000)]
    headers = [[("name", b"text")] if n % 3 == 0 else None for n in range(1_000)]
    stamps = list(range(1_000))
    many = [
        producer.send_many("t", [b"fixed"] * 1_000),
        producer.send_many("t", mixed),
        producer.send_many("t", [value or None for value in mixed], keys),
        producer.send_many("t", mixed, keys, headers=headers, timestamps_ms=stamps),
        producer.send_many("t", mixed, headers=headers, partition=[n % 3 for n in stamps], timestamps_ms=7),
    ]
    producer.flush(30)
    assert len({d.result(30).offset for d in deliveries}) > 30
    assert all(len(each.result(30)) == 1_000 for each in many)
    print([module for module in ("numpy", "pyarrow", "pandas") if module in sys.modules])
    print(adapt_to_large_blocks.cache_info().currsize)
"""


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_sending_lists_loads_no_library_of_arrays(codec: str) -> None:
    assert all(map(find_spec, HEAVY)), "they are installed, and could be loaded"
    broker = BrokerThread({"t": 6})
    try:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.address, codec], capture_output=True, text=True, timeout=60
        )
    finally:
        broker.stop()
    assert ran.stdout == "[]\n1\n", ran.stderr
