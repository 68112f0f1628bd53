"""Names and strings as SQL writes them."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted(text: str) -> str:
    """A string constant of SQL."""
    return "'" + text.replace("'", "''") + "'"
