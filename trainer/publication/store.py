"""Published versions on any fsspec path: whole or not at all, for readers anywhere.

    STORE/v000003/model.safetensors, config.json, ...
    STORE/v000003/manifest.json       last: the version, its digest, sha256 and size of each file

A version without its manifest is none: it is being written, or was given up.  Names are never written over
with other content, so a version is put twice by finding it there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import msgspec

from lake.durable import sync
from trainer.publication.engine import PublishError

CHUNK_BYTES = 8 << 20
MANIFEST = "manifest.json"


class File(msgspec.Struct, frozen=True):
    """One file of a version."""

    sha256: str
    size: int  # bytes


class Manifest(msgspec.Struct, frozen=True):
    """What a version consists of."""

    version: int
    digest: str  # trainer.weights.digest
    files: dict[str, File]


class StoreError(PublishError):
    """A store lacks a version, holds a damaged one, or does not answer."""


def _of(root: str, version: int) -> tuple[Any, str, bool]:
    """(file system, path of the version, whether it is a folder of this machine)."""
    fs, path = fsspec.core.url_to_fs(f"{root.rstrip('/')}/v{version:06d}", use_listings_cache=False)
    return fs, path, "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))


def _sum(path: Path) -> File:
    with path.open("rb") as file:
        return File(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


def manifest(root: str, version: int) -> Manifest | None:
    """What the store says a version is; None where it has none.  Raises StoreError."""
    fs, path, _ = _of(root, version)
    try:
        return msgspec.json.decode(fs.cat_file(f"{path}/{MANIFEST}"), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise StoreError(f"{root}: the manifest of version {version} does not decode: {error}") from error
    except Exception as error:  # each object store has errors of its own
        raise StoreError(f"{root}: version {version} could not be read: {error}") from error


def put(root: str, folder: Path, *, version: int, digest: str) -> Manifest:
    """Bring a folder to the store as `version`; returns once all of it is there.

    Raises StoreError where the store fails, or has another content under this version.
    """
    files = {p.name: _sum(p) for p in sorted(folder.iterdir()) if p.is_file()}
    ours = Manifest(version, digest, files)
    there = manifest(root, version)
    if there is not None:
        if there != ours:
            raise StoreError(
                f"{root} has weights {there.digest[:12]} as version {version}, these are {digest[:12]}; name "
                "another publication.store, or remove the version there"
            )
        return ours
    fs, path, local = _of(root, version)
    try:
        if local:
            _put_here(Path(path), folder, ours)
        else:
            for name in files:
                fs.put_file(str(folder / name), f"{path}/{name}")
            fs.pipe_file(f"{path}/{MANIFEST}", msgspec.json.encode(ours))  # an object is put at once
    except Exception as error:  # each object store has errors of its own
        raise StoreError(f"{root}: version {version} could not be written: {error}") from error
    return ours


def _put_here(path: Path, folder: Path, ours: Manifest) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in ours.files:
        half = path / f".{name}.{uuid.uuid4().hex}"
        shutil.copyfile(folder / name, half)
        sync(half)
        half.replace(path / name)
    sync(path)
    half = path / f".{MANIFEST}.{uuid.uuid4().hex}"
    half.write_bytes(msgspec.json.encode(ours))
    sync(half)
    half.replace(path / MANIFEST)
    sync(path)


def _fetch_file(fs: Any, source: str, target: Path, expected: File) -> None:
    """One file, checked while it comes."""
    sha256, size = hashlib.sha256(), 0
    with fs.open(source, "rb") as file, target.open("wb") as sink:
        while chunk := file.read(CHUNK_BYTES):
            sha256.update(chunk)
            size += sink.write(chunk)
    if (sha256.hexdigest(), size) != (expected.sha256, expected.size):
        raise StoreError(
            f"{source} has {size} bytes and sha256 {sha256.hexdigest()[:12]}, the manifest says "
            f"{expected.size} and {expected.sha256[:12]}; put the version again from its folder"
        )
    sync(target)


def fetch(root: str, version: int, folder: Path) -> Manifest:
    """Bring a version from the store into `folder`: whole and as its manifest says, or not at all.

    A folder that is there is left as it is.  Raises StoreError.
    """
    found = manifest(root, version)
    if found is None:
        raise StoreError(f"{root} has no version {version}: no manifest lies there")
    if folder.exists():
        _check_there(folder, found.files)
        return found
    fs, path, _ = _of(root, version)
    part = folder.with_name(f".{folder.name}.part-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    part.mkdir(parents=True)
    try:
        for name, expected in found.files.items():
            if "/" in name or name.startswith("."):
                raise StoreError(f"{root}: the manifest of version {version} names the file {name!r}")
            _fetch_file(fs, f"{path}/{name}", part / name, expected)
        sync(part)
        part.rename(folder)
    except StoreError:
        raise
    except Exception as error:  # each object store has errors of its own
        raise StoreError(f"{root}: version {version} could not be fetched: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    sync(folder.parent)
    return found


def _check_there(folder: Path, files: Mapping[str, File]) -> None:
    for name, expected in files.items():
        if not (folder / name).is_file() or _sum(folder / name) != expected:
            raise StoreError(f"{folder} is there and its {name} is another; remove it or name another folder")
