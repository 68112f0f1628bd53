"""What is on the disk and stays there when the power goes."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: str | Path) -> None:
    """Returns when the bytes of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
