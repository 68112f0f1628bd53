"""What Tab offers in the console: names after FROM, columns of the names that are there, the rest of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from lake.catalogue import entries, words
from lake.console_commands import COMMANDS
from lake.output import FORMS
from lake.query import Lake
from lake.query_errors import QueryError
from lake.statements import split

_AFTER_FROM = re.compile(r"\b(?:from|join|describe|summarize|table)\s+$", re.I)
_IN_FROM = re.compile(r"\bfrom\s+(?:\w+(?:\s+(?:as\s+)?\w+)?\s*,\s*)+$", re.I)
_NAMED = re.compile(r"(?:\b(?:from|join|describe|summarize)|,)\s+(\w+)(?:\s+(?:as\s+)?(\w+))?", re.I)
_WITH = re.compile(r"(?:\bwith(?:\s+recursive)?|,)\s+(\w+)\s+as\s+(?:(?:not\s+)?materialized\s+)?\(", re.I)
_WORD = re.compile(r"(?:(\w+)\.)?(\w*)$")
_SQL = (
    "select", "from", "where", "group by all", "order by", "limit", "join", "left join", "using", "with",
    "having", "qualify", "union all", "distinct", "count(*)", "case", "when", "then", "else", "end",
    "explain", "explain analyze", "describe", "summarize", "show tables",
)  # fmt: skip
KINDS = ("staging", "reports", "events", "weights", "groups", "paths", "trees")  # the more usual ones first


class SqlCompleter(Completer):
    """Completion on one lake.  It is asked while no query runs: it has the lake's connection then."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        usual = sorted(entries(lake), key=lambda e: KINDS.index(e.kind) if e.kind in KINDS else len(KINDS))
        self._about = {e.name: f"{e.kind}: {e.about}" for e in usual}
        self._columns: dict[str, list[tuple[str, str]]] = {}
        self._keywords, self._functions = words(lake)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if document.text.lstrip().startswith("."):
            yield from self._of_command(text.lstrip())
            return
        word = _WORD.search(text)
        assert word is not None  # it may be empty
        before, of, begun = text[: word.start()], str(word[1] or ""), word[2]
        statement = split(document.text)[1] or document.text
        if _AFTER_FROM.search(before) or _IN_FROM.search(before):
            yield from self._offer(begun, _WITH.findall(statement), "of this query")
            yield from self._offer_tables(begun)
            return
        named = {alias or name: name for name, alias in _NAMED.findall(statement)}
        named |= {name: name for name, _ in _NAMED.findall(statement)}
        if of:
            yield from self._offer_columns(begun, [named.get(of, of)])
            return
        if not begun and complete_event.text_inserted:
            return  # while typing only what has begun is offered
        yield from self._offer_columns(begun, sorted(set(named.values())))
        if begun:
            yield from self._offer(begun, named, "named in this query")
            yield from self._offer(begun, [*_SQL, *self._keywords], "")
            yield from self._offer(begun, self._functions, "function", after="(")

    def _of_command(self, text: str) -> Iterator[Completion]:
        command, space, argument = text.partition(" ")
        if not space:
            yield from self._offer(command, {c: does for c, (_, does, _) in COMMANDS.items()}, None)
        elif command in (".schema", ".model", ".tables"):
            yield from self._offer_tables(argument)
        elif command == ".format":
            yield from self._offer(argument, [f for f in FORMS if f != "parquet"], "")
        elif command == ".timing":
            yield from self._offer(argument, ["on", "off"], "")

    def _offer_tables(self, begun: str) -> Iterator[Completion]:
        """Those that begin so, then those with a later word that does: `event_calls` for `ca`."""
        yield from self._offer(begun, self._about, self._about)
        later = [name for name in self._about if begun and f"_{begun.lower()}" in name]
        for name in later:
            if not name.startswith(begun.lower()):
                yield Completion(name, -len(begun), display_meta=self._about[name])

    def _offer_columns(self, begun: str, names: Iterable[str]) -> Iterator[Completion]:
        offered: set[str] = set()
        for name in names:
            columns = {c: f"{kind}, {name}" for c, kind in self._columns_of(name.lower())}
            new = {c: about for c, about in columns.items() if c not in offered}
            offered |= new.keys()
            yield from self._offer(begun, new, new)

    def _columns_of(self, name: str) -> list[tuple[str, str]]:
        if name not in self._about:
            return []
        if name not in self._columns:
            try:
                self._columns[name] = self._lake.columns(name)
            except QueryError:  # told when it is asked for
                self._columns[name] = []
        return self._columns[name]

    @staticmethod
    def _offer(
        begun: str, words: Iterable[str], about: dict[str, str] | str | None, after: str = ""
    ) -> Iterator[Completion]:
        """Words that begin so, as capital as what was begun."""
        upper = begun.isupper() and len(begun) > 1
        descriptions = words if about is None and isinstance(words, dict) else about
        for word in words:
            if word.lower().startswith(begun.lower()):
                meta = descriptions.get(word, "") if isinstance(descriptions, dict) else descriptions
                text = word.upper() if upper and isinstance(about, str) else word
                yield Completion(text + after, -len(begun), display=word, display_meta=meta)
