"""What DuckDB says of a query, in one sentence: what is wrong, where, and the close names.

    raise said(error, query, lake.names()) from error

QueryError is misuse: a query that is not allowed or cannot be.  QueryStopped is a query that was right and
did not end: interrupted, out of time, out of memory.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

import duckdb

_PLACE = re.compile(r"LINE (\d+): (.*)\n( *)(\^+)?")
_KIND = re.compile(r"^(?:\w+ ){0,3}(?:Error|ERROR): ")
_TABLE = re.compile(r"Table with name (\S+) does not exist!")
_ELIDED = "..."  # DuckDB shows a piece of a long line
CLOSE_SHOWN = 4


class QueryError(ValueError):
    """A query that is not allowed or does not run: why, and what to do."""


class QueryStopped(RuntimeError):
    """A query that was stopped: interrupted, over its time, or over its memory."""


def said(error: BaseException, query: str, names: Collection[str]) -> QueryError | QueryStopped:
    """An error of DuckDB as one of ours.  `names`: what may stand after FROM."""
    text = str(error)
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory Error" in text:
        return QueryStopped(_out_of_memory(text))
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
        over = "maximum execution time" in text
        return QueryStopped("the query took longer than it may (timeout)" if over else "interrupted")
    return QueryError(_sentence(text, query, names))


def closest(name: str, names: Collection[str]) -> str:
    """What a slip of the fingers may have meant, or all that there is."""
    close = get_close_matches(name.lower(), sorted(names), CLOSE_SHOWN, 0.5)
    return f"close: {', '.join(close)}" if close else f"there are {', '.join(sorted(names))}"


def _out_of_memory(text: str) -> str:
    what = _KIND.sub("", text.partition("\n")[0]).strip()
    if "max_temp_directory_size" in text or "offload" in what:
        what += ": what spills to disk has a bound too"
    return f"out of memory: {what}; read less (a limit, fewer columns, groups), or give it more memory"


def _sentence(text: str, query: str, names: Collection[str]) -> str:
    head = _KIND.sub("", text.partition("\n\n")[0].partition("\nLINE ")[0]).strip()
    if unknown := _TABLE.search(head):
        name = unknown[1].strip('"').rsplit(".", 1)[-1]
        head = f"no table or model {name!r}; {closest(name, names)}"
    place = _place(text, query)
    return " ".join(head.split()) + (f" ({place})" if place else "")


def _place(text: str, query: str) -> str:
    """`line 2, column 7: the piece that DuckDB points at`; empty where it points at nothing."""
    found = _PLACE.search(text)
    if found is None:
        return ""
    line, shown, before, carets = int(found[1]), found[2], found[3], found[4] or "^"
    at = len(before) - len(f"LINE {line}: ")
    lines = query.splitlines()
    ours = 1 if lines and lines[0] == "explain" else 0  # a line that the user has not written
    if not 0 <= at < len(shown):
        return f"line {line - ours}"
    if shown.startswith(_ELIDED) and line <= len(lines):
        piece = shown.removeprefix(_ELIDED).removesuffix(_ELIDED)
        offset = lines[line - 1].find(piece)
        column = at - len(_ELIDED) + max(offset, 0)
    else:
        column = at
    return f"line {line - ours}, column {column + 1}: {shown[at : at + len(carets)].removesuffix(_ELIDED)}"
