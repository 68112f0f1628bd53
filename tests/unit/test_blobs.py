"""Bytes outside the log: written once, whole or not at all, given back exactly or with a sentence why not."""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lake.blobs import BlobDamaged, BlobMissing, Blobs
from lake.log import LogUnavailable

DATA = b"some bytes" * 1000
NAME = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run" / "blobs"


def file_of(root: Path) -> Path:
    return root / NAME[:2] / NAME


def test_what_was_put_is_given_back(root: Path) -> None:
    blobs = Blobs(str(root))
    assert blobs.put(DATA) == NAME
    assert blobs.get(NAME, len(DATA)) == DATA
    assert file_of(root).read_bytes() == DATA
    assert Blobs(str(root) + "/").get(NAME, len(DATA)) == DATA


def test_the_same_bytes_are_written_once(root: Path) -> None:
    blobs = Blobs(str(root))
    blobs.put(DATA)
    before = file_of(root).stat()
    assert blobs.put(DATA) == NAME
    after = file_of(root).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [len(files) for _, _, files in os.walk(root)] == [0, 1]


def test_many_may_put_the_same_bytes_at_once(root: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: Blobs(str(root)).put(DATA), range(32)))
    assert set(names) == {NAME}
    assert [p.name for p in root.rglob("*") if p.is_file()] == [NAME]


def test_a_file_and_its_folders_are_on_the_disk_before_put_returns(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every name that leads to the bytes is synced after it was made, also where another put made it."""
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
    )
    blobs = Blobs(str(root))
    assert synced == [str(root.parent)]
    blobs.put(DATA)
    assert synced[1] == str(root)
    assert Path(synced[2]).name.startswith("part-")
    assert synced[3:] == [str(root / NAME[:2])]
    blobs.put(DATA)
    assert synced[4:] == [str(root / NAME[:2])]


@pytest.mark.parametrize(
    "wrong", [DATA[:-1], DATA + b"x", b"x" + DATA[1:], b""], ids=["short", "long", "other", "no"]
)
def test_damaged_bytes_are_named_and_mended_by_putting_them_again(root: Path, wrong: bytes) -> None:
    blobs = Blobs(str(root))
    blobs.put(DATA)
    file_of(root).write_bytes(wrong)
    with pytest.raises(BlobDamaged, match=f"{NAME} in .* is damaged: {len(wrong)} bytes of {len(DATA)}"):
        blobs.get(NAME, len(DATA))
    blobs.put(DATA)
    assert blobs.get(NAME, len(DATA)) == DATA


def test_another_size_than_the_claim_says_is_damage(root: Path) -> None:
    blobs = Blobs(str(root))
    blobs.put(DATA)
    with pytest.raises(BlobDamaged, match=f"{len(DATA)} bytes of 7"):
        blobs.get(NAME, 7)


def test_missing_bytes_are_missing_and_a_missing_store_is_unavailable(root: Path) -> None:
    blobs = Blobs(str(root))
    with pytest.raises(BlobMissing, match=f"{NAME} of 5 bytes is not in"):
        blobs.get(NAME, 5)
    shutil.rmtree(root)
    with pytest.raises(LogUnavailable, match="is not there"):
        blobs.get(NAME, 5)
    with pytest.raises(LogUnavailable, match="could not be written"):
        blobs.put(DATA)
    assert not root.exists()


def test_a_root_that_cannot_be_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogUnavailable, match="cannot be made"):
        Blobs(str(tmp_path / "file" / "blobs"))


def test_a_write_that_fails_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(str(root))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(LogUnavailable, match="No space left on device"):
            blobs.put(DATA)
    assert [p for p in root.rglob("*") if p.is_file()] == []
    assert blobs.put(DATA) == NAME
