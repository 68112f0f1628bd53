"""Tokens of executions, and the run's secret."""

from __future__ import annotations

import multiprocessing
import stat
import string

import pytest

from ingest.identity import BadSecret, BadToken, Identity, read_secret, sign, verify
from lake.layout import Run

SECRET = b"s" * 32


def test_a_token_carries_group_and_execution():
    token = sign(SECRET, "g-17/ünï", "e-17-3")
    assert verify(SECRET, token) == Identity("g-17/ünï", "e-17-3")
    assert set(token) <= set(string.ascii_letters + string.digits + "-_.")


def test_every_changed_character_is_refused():
    token = sign(SECRET, "g-1", "e-1")
    for at in range(len(token)):
        other = "A" if token[at] != "A" else "B"
        changed = token[:at] + other + token[at + 1 :]
        try:
            accepted = verify(SECRET, changed)
        except BadToken:
            continue
        # The last character of base64 may carry unused bits: the same bytes, the same identity.
        assert at == len(token) - 1
        assert accepted == Identity("g-1", "e-1")


@pytest.mark.parametrize(
    "token",
    ["", "sk-1", "hr-", "hr-.", "hr-a.b", "hr-ü.ä", sign(b"t" * 32, "g", "e"), "hr-" + "a" * 2000 + ".b"],
)
def test_a_foreign_token_is_refused(token):
    with pytest.raises(BadToken):
        verify(SECRET, token)


def test_an_execution_id_must_fit_into_a_path():
    with pytest.raises(ValueError, match="stands in a URL"):
        sign(SECRET, "g", "a/b")
    with pytest.raises(ValueError, match="1024 at most"):
        sign(SECRET, "g" * 1000, "e")


def _read(path, queue):
    queue.put(read_secret(Run(path)))


def test_processes_that_race_get_one_secret(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_read, args=(tmp_path, queue)) for _ in range(6)]
    for process in processes:
        process.start()
    found = {queue.get(timeout=30) for _ in processes}
    for process in processes:
        process.join()
    assert found == {read_secret(Run(tmp_path))}
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_a_short_secret_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(BadSecret, match="5 bytes, at least 32"):
        read_secret(Run(tmp_path))
