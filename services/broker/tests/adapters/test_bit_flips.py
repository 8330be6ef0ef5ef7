"""One flipped bit in each kind of file: found, named, never served as sound; opening never hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_image import Image, make_image
from storage_processes import inspect


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("flips"))


def flip(path: Path, at: int) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_flip_in_synced_wal_is_damage(whole: Image, tmp_path: Path, share: float) -> None:
    image = whole.copy(tmp_path / "data")
    flip(image.wal_path, int(image.wal_synced * share))
    found = inspect(image.path)
    assert not found.refused
    assert found.wrong == []
    assert found.damaged
    for number, recovered, evident, reason in found.damaged:
        assert (recovered, evident) == (found.logs[number][1], image.synced[number])
        assert recovered < evident
        assert f"offsets {recovered} to {evident - 1} were on disk and are lost" in reason
        assert image.wal in reason
    sound = set(found.logs) - {damage[0] for damage in found.damaged}
    assert all(found.logs[log][1] >= image.synced[log] for log in sound)
    again = inspect(image.path)
    assert [damage[:3] for damage in again.damaged] == [damage[:3] for damage in found.damaged], "it stays damaged"


def test_a_lost_wal_is_damage(whole: Image, tmp_path: Path) -> None:
    image = whole.copy(tmp_path / "data")
    image.wal_path.unlink()
    found = inspect(image.path)
    assert found.wrong == []
    assert {damage[0] for damage in found.damaged} == {
        log for log, end in image.synced.items() if found.logs[log][1] < end
    }
    assert found.damaged


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 0.999])
def test_a_flip_in_a_table_file_is_named(whole: Image, tmp_path: Path, share: float) -> None:
    image = whole.copy(tmp_path / "data")
    path = next((image.path / "db").glob("*.sst"))
    flip(path, int(path.stat().st_size * share))
    found = inspect(image.path)
    assert not any("other bytes" in text for text in found.wrong)
    assert found.wrong == []
    texts = [found.refused] if found.refused else [damage[3] for damage in found.damaged]
    assert texts
    assert all(path.name in text for text in texts)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.4, 0.7, 0.97])
def test_a_flip_in_a_blob_file_is_never_served_as_sound(whole: Image, tmp_path: Path, share: float) -> None:
    image = whole.copy(tmp_path / "data")
    path = max((image.path / "db").glob("*.blob"), key=lambda one: one.stat().st_size)
    flip(path, int(path.stat().st_size * share))
    found = inspect(image.path)
    assert not any("other bytes" in text for text in found.wrong)
    assert not found.refused
    assert found.damaged == []
    assert len(found.wrong) <= (len(whole.synced) * 99 if share == 0.001 else 1), "only what was hit is refused"
    if share > 0.1:
        assert found.wrong


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT"])
def test_a_flip_that_keeps_the_store_from_opening_is_damage_of_all_logs(
    whole: Image, tmp_path: Path, pattern: str
) -> None:
    image = whole.copy(tmp_path / "data")
    (path,) = (image.path / "db").glob(pattern)
    flip(path, path.stat().st_size // 2)
    found = inspect(image.path)
    assert (found.refused, found.wrong) == ("", [])
    assert {one[0]: one[1:3] for one in found.damaged} == {log: (0, end) for log, end in image.synced.items()}
    assert all(path.name in one[3] for one in found.damaged)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_flip_in_the_evidence_file_is_named(whole: Image, tmp_path: Path, share: float) -> None:
    image = whole.copy(tmp_path / "data")
    path = image.path / "evidence"
    flip(path, int(path.stat().st_size * share))
    found = inspect(image.path)
    image.assert_synced_is_there(found)
    assert any("evidence" in text and "damaged" in text for text in found.cuts)


def test_a_lost_evidence_file_is_named(whole: Image, tmp_path: Path) -> None:
    image = whole.copy(tmp_path / "data")
    (image.path / "evidence").unlink()
    found = inspect(image.path)
    image.assert_synced_is_there(found)
    assert any("evidence" in text and "missing" in text for text in found.cuts)


def test_a_flip_in_the_identity_is_refused_by_name(whole: Image, tmp_path: Path) -> None:
    image = whole.copy(tmp_path / "data")
    flip(image.path / "identity", 20)
    assert "identity is damaged" in inspect(image.path).refused


def test_a_wiped_database_is_damage(whole: Image, tmp_path: Path) -> None:
    import shutil

    image = whole.copy(tmp_path / "data")
    shutil.rmtree(image.path / "db")
    found = inspect(image.path)
    assert {damage[0]: damage[1:3] for damage in found.damaged} == {
        log: (0, end) for log, end in image.synced.items() if end
    }
