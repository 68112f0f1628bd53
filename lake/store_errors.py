"""How a store fails, and which failures of the file system and of delta-rs are which.

StoreError            the lake could not do what was asked
  Fenced              another writer moved the offsets: this one is a zombie and must stop
  StoreFull           no space is left; the same append may be called again once there is
  StoreUnavailable    the object store does not answer; the same append may be called again
  SchemaDiffers       a column has another type than the table's
  FileGone            a file that this handle knows was vacuumed
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_TEXT = ("No space left on device", "Disk quota exceeded")  # as delta-rs says it


class StoreError(Exception):
    """The lake could not do what was asked."""


class Fenced(StoreError):
    """Another writer moved the offsets: this one is a zombie and must stop."""


class StoreFull(StoreError):
    """No space is left.  Nothing was committed: free some and call again."""


class StoreUnavailable(StoreError):
    """The object store does not answer.  Call again: what was committed after all is not repeated."""


class SchemaDiffers(StoreError):
    """A declared column has another type than the table's."""


class FileGone(StoreError):
    """A file of the version that this handle sees was vacuumed: refresh."""


def is_full(error: BaseException) -> bool:
    """Whether the disk is full, as Python, Arrow or delta-rs tell it."""
    return getattr(error, "errno", None) in FULL or any(text in str(error) for text in FULL_TEXT)


def told(error: Exception, uri: str, *, local: bool) -> StoreError:
    """The failure of a file or of a commit, by its kind."""
    if isinstance(error, StoreError):
        return error
    text = f"{type(error).__name__}: {plain(error)}"
    if is_full(error):
        return StoreFull(f"{uri}: no space left ({text}); free some, and the writer goes on")
    if local:
        return StoreError(f"{uri}: {text}")
    return StoreUnavailable(f"{uri}: the object store does not answer as it should: {text}")


def plain(error: BaseException) -> str:
    """An error's words on one line: delta-rs colours them and draws arrows."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", " ", str(error)).split())


@contextmanager
def telling(uri: str, *, local: bool) -> Iterator[None]:
    """Failures inside come out as a StoreError of their kind."""
    try:
        yield
    except Exception as error:
        raise told(error, uri, local=local) from error
