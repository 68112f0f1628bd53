"""Blobs on a real S3 server: given back, missing, damaged, and a server or a bucket that is not there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake.blobs import BlobDamaged, BlobMissing, Blobs
from lake.log import LogUnavailable, open_log
from lake.wire import event_of
from tests.support.events import tool
from tests.support.s3 import bucket

DATA = b"0123456789" * 200_000
NAME = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with bucket(tmp_path_factory.mktemp("s3")):
        yield


@pytest.mark.usefixtures("s3")
def test_blobs_on_s3_are_as_they_are_on_a_disk() -> None:
    blobs = Blobs("s3://headrace/one/blobs")
    with pytest.raises(BlobMissing, match=NAME):
        blobs.get(NAME, len(DATA))
    assert blobs.put(DATA) == blobs.put(DATA) == NAME
    assert Blobs("s3://headrace/one/blobs/").get(NAME, len(DATA)) == DATA
    with pytest.raises(BlobDamaged, match="2000000 bytes of 5"):
        blobs.get(NAME, 5)
    blobs._fs.pipe_file(blobs._file(NAME), DATA[:-1] + b"x")
    with pytest.raises(BlobDamaged, match="another sha256"):
        blobs.get(NAME, len(DATA))
    blobs.put(DATA)
    assert blobs.get(NAME, len(DATA)) == DATA


@pytest.mark.usefixtures("s3")
def test_a_log_keeps_its_large_fields_on_s3(tmp_path: Path) -> None:
    log = open_log(f"sqlite://{tmp_path}/log.db", Blobs("s3://headrace/two/blobs"))
    event = tool("g", 1, DATA)
    log.append([event])
    reader = log.reader({("tools", 0): 0})
    (record,) = reader.poll(1.0)
    assert event_of(record, log.blobs) == event
    reader.close()
    log.close()


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_unavailable_and_loses_nothing() -> None:
    blobs = Blobs("s3://no-such-bucket/blobs")
    with pytest.raises(LogUnavailable, match="no-such-bucket is not there"):
        blobs.get(NAME, len(DATA))


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    """It is tried for a few seconds by its client; then whoever reads decides to wait."""
    with bucket(tmp_path):
        blobs = Blobs("s3://headrace/blobs")
        blobs.put(DATA)
        assert blobs.get(NAME, len(DATA)) == DATA
    with pytest.raises(LogUnavailable, match="could not be read"):
        blobs.get(NAME, len(DATA))
