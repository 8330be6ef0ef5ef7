"""What was synced survives whatever happens to what was not: cut, zeroed, garbled, torn in eight ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_image import Image, make_image
from storage_processes import inspect


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("power"))


def test_the_image_itself_has_everything(whole: Image, tmp_path: Path) -> None:
    found = inspect(whole.copy(tmp_path / "data").path)
    assert (found.refused, found.wrong, found.damaged, found.cuts) == ("", [], [], [])
    assert {log: end for log, (_, end) in found.logs.items()} == whole.ends


def cut(data: bytearray, synced: int) -> bytearray:
    return data[:synced]


def zero(data: bytearray, synced: int) -> bytearray:
    return data[:synced] + bytes(len(data) - synced)


def garble(data: bytearray, synced: int) -> bytearray:
    return data[:synced] + random.Random(7).randbytes(len(data) - synced)


def garble_pages(data: bytearray, synced: int) -> bytearray:
    """Pages reach the disk in any order: every other one is missing."""
    for page in range((synced // 4096 + 1) * 4096, len(data), 8192):
        data[page : page + 4096] = bytes(len(data[page : page + 4096]))
    return data


@pytest.mark.parametrize("loss", [cut, zero, garble, garble_pages])
def test_synced_data_survives_a_loss_of_power(
    whole: Image, tmp_path: Path, loss: Callable[[bytearray, int], bytearray]
) -> None:
    image = whole.copy(tmp_path / "data")
    image.wal_path.write_bytes(loss(bytearray(image.wal_path.read_bytes()), image.wal_synced))
    image.assert_synced_is_there(inspect(image.path))
    again = inspect(image.path)
    image.assert_synced_is_there(again)
    assert again.cuts == []


TEARS: dict[str, Callable[[bytes], bytes]] = {
    "one byte short": lambda data: data[:-1],
    "within a payload": lambda data: data[: -len(data) // 50],
    "within a header": lambda data: data[:3],
    "at a block's end": lambda data: data[: len(data) // 32768 * 32768],
    "within a block's last header": lambda data: data[: len(data) // 32768 * 32768 + 5],
    "zeros at the end": lambda data: data[:-500] + bytes(500),
    "garbage at the end": lambda data: data[:-500] + random.Random(1).randbytes(500),
    "garbage behind the end": lambda data: data + random.Random(2).randbytes(5000),
    "zeros behind the end": lambda data: data + bytes(70_000),
    "the tail twice": lambda data: data + data[-3000:],
}


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_tail_costs_only_what_was_not_synced(whole: Image, tmp_path: Path, tear: str) -> None:
    image = whole.copy(tmp_path / "data")
    data = image.wal_path.read_bytes()
    image.wal_path.write_bytes(data[: image.wal_synced] + TEARS[tear](data[image.wal_synced :]))
    image.assert_synced_is_there(inspect(image.path))


def test_what_was_cut_off_is_kept_and_named(whole: Image, tmp_path: Path) -> None:
    image = whole.copy(tmp_path / "data")
    data = bytearray(image.wal_path.read_bytes())
    data[image.wal_synced + 30] ^= 4
    image.wal_path.write_bytes(data)
    found = inspect(image.path)
    assert len(found.cuts) == 1
    assert found.cuts[0].startswith(f"{image.wal}: cut from byte ")
    (kept,) = (image.path / "cut").iterdir()
    assert data.endswith(kept.read_bytes())
