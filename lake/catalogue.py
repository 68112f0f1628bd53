"""What the tables and models of a lake are: a sentence each, their columns, their keys.

for entry in entries(lake): print(entry.name, entry.kind, entry.about)
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import msgspec

from lake.events import CATALOGUE
from lake.models import EVENT_TABLES, Model
from lake.query import Lake
from lake.query_errors import QueryError, closest
from lake.questions import FOLDER, of_model
from lake.read_only import TABLE_FUNCTIONS

EVENTS = "events"
_END = re.compile(r"(?<=[.?]) ")


class Entry(msgspec.Struct, frozen=True):
    """A table or model: `kind` is `events` or the folder of its SQL, `about` one sentence, `header` all."""

    name: str
    kind: str
    about: str
    header: str
    key: tuple[str, ...]


def entry(lake: Lake, name: str) -> Entry:
    """What a table or model is.  Raises QueryError for a name that is none, with the close ones."""
    name = name.strip().strip('"').lower()
    if name in EVENT_TABLES:
        return _event_table(name)
    if name in lake.models.by_name:
        return _of_model(lake.models.by_name[name])
    raise QueryError(f"no table or model {name!r}; {closest(name, lake.names())}")


def entries(lake: Lake, pattern: str = "*") -> list[Entry]:
    """All of them whose name fits: `*` and `?` stand for anything, and a word for names that hold it."""
    pattern = pattern.lower()
    pattern = pattern if set(pattern) & {"*", "?", "["} else f"*{pattern}*"
    found = [entry(lake, name) for name in lake.names() if fnmatchcase(name, pattern)]
    return sorted(found, key=lambda e: (e.kind != EVENTS, e.kind, e.name))


def _event_table(name: str) -> Entry:
    topic = name.removeprefix("event_")
    types = [kind for kind, event in CATALOGUE.items() if topic == event.TOPIC]
    if types:
        about = f"One row an event of these types: {', '.join(types)}."
        return Entry(name, EVENTS, about, about, ("event_id",))
    about = "One row a record of the log that did not decode: where it lay, its bytes, and why."
    return Entry(name, EVENTS, about, about, ("topic", "log_partition", "log_offset"))


def _of_model(model: Model) -> Entry:
    text = " ".join(model.header.split())
    about = of_model(model).question if model.folder == FOLDER else _END.split(text, maxsplit=1)[0]
    return Entry(model.name, model.folder, about, model.header, model.key)


def words(lake: Lake) -> tuple[list[str], list[str]]:
    """The keywords and the functions of the lake's SQL, without the functions that are refused."""
    keywords = lake.sql("select distinct keyword_name from duckdb_keywords() order by all").fetchall()
    functions = lake.sql(
        "select function_name, bool_or(function_type = 'table') from duckdb_functions() where "
        r"regexp_full_match(function_name, '[a-z]\w*') and function_type <> 'pragma' group by 1 order by 1"
    ).fetchall()
    allowed = [name for name, is_table in functions if not is_table or name in TABLE_FUNCTIONS]
    return [word for (word,) in keywords], allowed
