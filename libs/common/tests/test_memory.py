"""The allocator is told to keep what is freed, and the collector what it need not look at."""

from __future__ import annotations

import gc
import subprocess
import sys

from headrace_common.runtime.memory import exclude_from_gc

PROBE = """
import resource
from headrace_common.runtime.memory import keep_freed_memory

kept = keep_freed_memory()
bytearray(8 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    bytearray(8 << 20)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_blocks_are_used_again_instead_of_being_mapped_anew() -> None:
    """In a process of its own, because the allocator of this one would stay changed."""
    kept, faults = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
    ).stdout.split()
    assert kept == "True"
    assert int(faults) < 50 * 2048 // 4, "pages of 50 blocks of 8 MiB would be 102400 faults"


ADAPTED = """
import resource
from headrace_common.runtime.memory import adapt_to_large_blocks

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytearray(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
adapt_to_large_blocks()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, faults())
"""


def test_a_process_of_others_adapts_to_large_blocks_without_a_setting() -> None:
    own, faults = subprocess.run(
        [sys.executable, "-c", ADAPTED], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(own) < 100, "the block itself has 8192 pages"
    assert int(faults) < 50 * 2048 // 4


def test_the_collector_never_looks_at_what_is_made_to_live_long() -> None:
    """Also where two such times overlap."""
    gc.unfreeze()
    try:
        with exclude_from_gc():
            with exclude_from_gc():
                one = [[n] for n in range(1_000)]
            assert not gc.isenabled()
            two = [[n] for n in range(1_000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= 2_000
        seen = {id(found) for found in gc.get_objects()}
        assert id(one) not in seen
        assert id(two[0]) not in seen
    finally:
        gc.unfreeze()
