"""Storage under faults, long form: kills in a loop, power loss at random points, random flips, a full disk."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_image import Image, make_image
from storage_processes import COMPACTING, WritingChild, assert_nothing_lost, inspect

from headrace_broker.adapters import wal_guard

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("policy", "kills"), [("os", 7), ("group", 7), ("always", 6)])
def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, policy: str, kills: int) -> None:
    acked: dict[int, int] = {}
    chance = random.Random(policy)
    for seed in range(kills):
        child = WritingChild(tmp_path / "data", policy, seed)
        child.wait_for_acks(chance.randint(50, 1500))
        acked |= child.kill()
        found = inspect(tmp_path / "data")
        assert_nothing_lost(found, acked)
        assert not found.clean


@pytest.mark.parametrize(("policy", "kills"), [("os", 10), ("group", 10)])
def test_twenty_kills_of_a_process_that_compacts_lose_no_key(tmp_path: Path, policy: str, kills: int) -> None:
    acked: dict[int, int] = {}
    chance = random.Random(policy)
    for seed in range(kills):
        child = WritingChild(tmp_path / "data", policy, seed, child=COMPACTING)
        child.wait_for_acks(chance.randint(20, 400))
        acked |= child.kill()
        assert_nothing_lost(inspect(tmp_path / "data", COMPACTING), acked)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("seed", range(25))
def test_synced_data_survives_any_fate_of_what_was_not(whole: Image, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    image = whole.copy(tmp_path / "data")
    data = bytearray(image.wal_path.read_bytes())
    for _ in range(chance.randint(1, 12)):
        at = chance.randint(image.wal_synced, len(data) - 1)
        match chance.randint(0, 3):
            case 0:
                del data[at:]
                break
            case 1:
                data[at : at + 4096] = bytes(len(data[at : at + 4096]))
            case 2:
                data[at : at + 512] = chance.randbytes(len(data[at : at + 512]))
            case _:
                data[at] ^= 1 << chance.randint(0, 7)
    image.wal_path.write_bytes(data)
    image.assert_synced_is_there(inspect(image.path))


@pytest.mark.parametrize("seed", range(40))
def test_one_flipped_bit_anywhere_is_never_served_and_never_hangs(whole: Image, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    image = whole.copy(tmp_path / "data")
    kind = ("*.log", "*.sst", "*.blob", "MANIFEST-*")[seed % 4]
    path = max((image.path / "db").glob(kind), key=lambda one: one.stat().st_size)
    data = bytearray(path.read_bytes())
    at = chance.randrange(image.wal_synced if kind == "*.log" else len(data))
    data[at] ^= 1 << chance.randint(0, 7)
    path.write_bytes(data)
    found = inspect(image.path)
    assert not any("other bytes" in text or "follows" in text for text in found.wrong), (path.name, at)
    if found.refused:
        return
    damaged = {one[0] for one in found.damaged}
    sound = {log: end for log, end in image.synced.items() if log not in damaged}
    assert all(found.logs[log][1] >= end for log, end in sound.items()), (path.name, at)
    if kind == "*.log":
        assert damaged


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_and_a_kill_while_it_is_written_to(tmp_path: Path, seed: int) -> None:
    """What is lost to the flip is named; nothing else is, and nothing is served wrongly."""
    child = WritingChild(tmp_path / "data", "group", seed)
    child.wait_for_acks(400)
    child.kill()
    chance = random.Random(seed)
    database = tmp_path / "data" / "db"
    needed_from, _ = wal_guard._manifest(database)  # one that is flushed may still be there, and nobody reads it
    wals = sorted(
        (one for one in database.glob("*.log") if int(one.stem) >= needed_from), key=lambda one: int(one.stem)
    )
    path = chance.choice([one for one in wals if one.stat().st_size > 0])
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1
    path.write_bytes(data)
    found = inspect(tmp_path / "data")
    assert (found.refused, found.wrong) == ("", [])
    assert found.cuts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 24 MiB."""
    assert os.geteuid() == 0, "this test mounts a tmpfs: run it as root, or in a user namespace (unshare -rm)"
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount)], check=True, timeout=20)
    yield mount
    subprocess.run(["umount", str(mount)], check=True, timeout=20)


@pytest.mark.parametrize("policy", ["os", "group"])
def test_a_full_disk_and_space_again(small_disk: Path, policy: str) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(6 << 20))
    child = WritingChild(small_disk / "data", policy, 1)
    acked = child.wait()
    assert child.process.returncode == 3, child.stderr()
    assert "the disk is full; free space, then start the broker again" in child.last_line
    ballast.unlink()
    assert_nothing_lost(inspect(small_disk / "data"), acked)
    child = WritingChild(small_disk / "data", policy, 2)
    child.wait_for_acks(20)
    acked |= child.kill()
    assert_nothing_lost(inspect(small_disk / "data"), acked)
