"""Published versions on fsspec: whole or not at all, for who puts and for who fetches."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import s3
from trainer.publication.store import StoreError, fetch, manifest, put

FILES = {"model.safetensors": b"weights" * 1000, "config.json": b"{}", "empty": b""}


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def content(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    with s3.bucket(tmp_path_factory.mktemp("s3")):
        yield f"s3://headrace/{uuid.uuid4().hex}"


@pytest.fixture(params=["folder", "memory", "s3"])
def root(request, tmp_path):
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}"
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def test_what_is_put_is_fetched(root, tmp_path):
    source = folder_of(tmp_path / "v000003", FILES)
    assert manifest(root, 3) is None
    there = put(root, source, version=3, digest="d")
    assert manifest(root, 3) == there
    assert put(root, source, version=3, digest="d") == there
    assert fetch(root, 3, tmp_path / "here") == there
    assert content(tmp_path / "here") == FILES
    assert fetch(root, 3, tmp_path / "here") == there
    (tmp_path / "here" / "config.json").write_bytes(b"[]")
    with pytest.raises(StoreError, match=r"its config\.json is another"):
        fetch(root, 3, tmp_path / "here")


def test_a_version_is_never_written_over(root, tmp_path):
    put(root, folder_of(tmp_path / "a", FILES), version=1, digest="d" * 64)
    with pytest.raises(StoreError, match=r"has weights dddddddddddd as version 1, these are eeeeeeeeeeee"):
        put(root, folder_of(tmp_path / "b", {**FILES, "config.json": b"[]"}), version=1, digest="e" * 64)
    fetch(root, 1, tmp_path / "here")
    assert content(tmp_path / "here") == FILES


def test_files_without_a_manifest_are_no_version(root, tmp_path):
    source = folder_of(tmp_path / "a", FILES)
    put(root, source, version=1, digest="d")
    fs, path = fsspec.core.url_to_fs(f"{root}/v000001")
    fs.rm(f"{path}/manifest.json")
    with pytest.raises(StoreError, match="no version 1"):
        fetch(root, 1, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    put(root, source, version=1, digest="d")  # who was killed in between puts it again
    fetch(root, 1, tmp_path / "here")


@pytest.mark.parametrize("fault", ["short", "other bytes", "gone"])
def test_a_damaged_version_is_not_fetched(root, tmp_path, fault):
    put(root, folder_of(tmp_path / "a", FILES), version=1, digest="d")
    fs, path = fsspec.core.url_to_fs(f"{root}/v000001")
    file = f"{path}/model.safetensors"
    if fault == "gone":
        fs.rm(file)
    else:
        data = FILES["model.safetensors"]
        fs.pipe_file(file, data[:-1] if fault == "short" else b"X" + data[1:])
    with pytest.raises(StoreError, match="could not be fetched" if fault == "gone" else "manifest says"):
        fetch(root, 1, tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir() if "here" in p.name] == []


def test_a_manifest_that_leads_elsewhere_is_refused(tmp_path):
    root = str(tmp_path / "store")
    put(root, folder_of(tmp_path / "a", FILES), version=1, digest="d")
    file = tmp_path / "store" / "v000001" / "manifest.json"
    file.write_text(file.read_text().replace("config.json", "../config.json"))
    with pytest.raises(StoreError, match=r"names the file '\.\./config\.json'"):
        fetch(root, 1, tmp_path / "here")
    file.write_text("{")
    with pytest.raises(StoreError, match="does not decode"):
        fetch(root, 1, tmp_path / "here")


def test_a_store_that_is_away_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="could not be"):
        put(str(tmp_path / "file"), folder_of(tmp_path / "a", FILES), version=1, digest="d")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}\.[a-z]{1,3}", fullmatch=True), st.binary(max_size=300)))
def test_any_files_come_back_as_they_were(tmp_path, files):
    work = tmp_path / uuid.uuid4().hex
    root = f"memory://{uuid.uuid4().hex}"
    put(root, folder_of(work / "a", files), version=0, digest="d")
    fetch(root, 0, work / "b")
    assert content(work / "b") == files
    shutil.rmtree(work)
