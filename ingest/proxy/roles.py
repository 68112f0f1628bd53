"""Which role a call has, by rules over its request and headers; the rules are data (roles.toml).

    roles = Roles.load(Path("my-roles.toml"))           a user's rules come before the shipped ones
    roles.role(request, headers, memory)                one of lake.events.ROLES

    [[rule]]
    name = "my harness: a critic"
    is = ["sub-agent"]                     sub-agent, summary, auxiliary; [] says nothing
    final = true                           where it holds, no later rule is asked (default: false)
    [rule.when]                            all of these hold:
    dialect = "chat"                       chat, responses, anthropic
    headers = {x-title = "critic"}         each header is there and its value matches
    json = {x-meta = {"turn.kind" = "^critic$"}}        a header that holds JSON: a path in it, dotted
    system = "^You judge"                  the first system message
    first_user = "..."                     the first message of a user
    last_user = "..."                      the last one
    tools = "none"                         none, some
    stream = true
    model = "small"

    [[session]]                            a harness that names its sessions, and their parents
    name = "my harness"
    header = "x-session-id"
    parent = "x-parent-session-id"

Texts are matched by `re.search` in their first TEXT_CHARS characters, header names in any case.  What the
rules that hold say is put together:

    auxiliary -> auxiliary     sub-agent, summary -> sub-agent-summary     none -> main     ...

Sessions: a request with a parent is a sub-agent's, and the execution's memory keeps that, so that a later
request of the session without a parent is one too.  The memory dies with the proxy's process.  After that
each sub-agent's request with a parent teaches it again, and a summary is of whom it summarises: of a
sub-agent where the newest tool call in its history is one that a sub-agent made (`made_by`, which the log
knows).  Only a summary without a parent and without any tool call, before its session's next request, is
then taken for one of the main agent: its role is less exact, its tokens and their tree are not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from ingest.proxy.neutral import Request

SHIPPED = Path(__file__).with_name("roles.toml")
TEXT_CHARS = 64 << 10
"""Of a text are looked at: a prompt's kind is told at its beginning."""
SESSIONS_MAX = 4096
"""That an execution's memory keeps; the oldest is forgotten."""
KINDS_MAX = 4096
"""Of requests, for which the rules that can hold are remembered: clients choose their headers."""
SESSION_CHARS_MAX = 256

Flag = Literal["sub-agent", "summary", "auxiliary"]
MadeBy = Callable[[str], str | None]
"""The role of the call that made a tool call of this id; None: none did."""
_T = TypeVar("_T")


class RolesError(ValueError):
    """Rules that cannot be used: which file, which rule, what is wrong with it."""


class _When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dialect: Literal["chat", "responses", "anthropic"] | None = None
    headers: dict[str, str] = {}
    json: dict[str, dict[str, str]] = {}
    system: str | None = None
    first_user: str | None = None
    last_user: str | None = None
    tools: Literal["none", "some"] | None = None
    stream: bool | None = None
    model: str | None = None


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sets: tuple[Flag, ...] = msgspec.field(name="is")
    when: _When
    final: bool = False


class _Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    header: str
    parent: str


_JSON_VALUES = (str, int, float, bool)


class _Asked:
    """A request as rules look at it; each part is taken out once, when a rule first asks."""

    def __init__(self, request: Request, headers: Mapping[str, str]) -> None:
        self.request = request
        self.headers = headers
        self._texts: dict[str, str] = {}
        self._documents: dict[str, Any] = {}

    def text(self, name: str) -> str:
        """`system`, `first_user` or `last_user`; "" where there is no such message."""
        if name not in self._texts:
            role, newest = ("system", False) if name == "system" else ("user", name == "last_user")
            messages = self.request.messages
            ordered = reversed(messages) if newest else iter(messages)
            self._texts[name] = next((m.text[:TEXT_CHARS] for m in ordered if m.role == role), "")
        return self._texts[name]

    def value(self, header: str, path: str) -> str | None:
        """What stands at a dotted path of a header's JSON, as text; None where nothing plain does."""
        if header not in self._documents:
            try:
                self._documents[header] = msgspec.json.decode(self.headers.get(header, ""))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                self._documents[header] = None
        at = self._documents[header]
        for part in path.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        if isinstance(at, str):
            return at
        return msgspec.json.encode(at).decode() if isinstance(at, _JSON_VALUES) else None


class _Compiled:
    """A rule, ready to be asked: `may` says of which requests."""

    def __init__(self, rule: _Rule) -> None:
        """Raises RolesError for what is no rule."""
        when = rule.when
        if when == _When():
            raise RolesError("`when` says nothing, and the rule would hold for every call")
        self.sets, self.final = frozenset(rule.sets), rule.final
        self._dialect, self._stream, self._model = when.dialect, when.stream, _pattern("model", when.model)
        self._tools = when.tools
        self.headers = frozenset(name.lower() for name in (*when.headers, *when.json))
        self._headers = [(n.lower(), _compiled(f"headers.{n}", p)) for n, p in when.headers.items()]
        self._json = [
            (header.lower(), path, _compiled(f"json.{header}.{path}", pattern))
            for header, paths in when.json.items()
            for path, pattern in paths.items()
        ]
        texts = [(n, _pattern(n, getattr(when, n))) for n in ("system", "first_user", "last_user")]
        self._texts = [(name, pattern) for name, pattern in texts if pattern is not None]

    def may(self, dialect: str, stream: bool, tools: bool, headers: Iterable[str]) -> bool:
        """Whether it can hold for a request of this kind, with these of the headers that rules ask for."""
        return (
            self.headers.issubset(headers)
            and self._dialect in (None, dialect)
            and self._stream in (None, stream)
            and (self._tools is None or (self._tools == "some") == tools)
        )

    def holds(self, asked: _Asked) -> bool:
        """Whether it holds for a request of which it may."""
        return (
            (self._model is None or self._model.search(asked.request.model[:TEXT_CHARS]) is not None)
            and all(pattern.search(asked.headers[name]) for name, pattern in self._headers)
            and all(
                (v := asked.value(header, path)) is not None and p.search(v) for header, path, p in self._json
            )
            and all(pattern.search(asked.text(name)) for name, pattern in self._texts)
        )


@dataclass(frozen=True)
class Roles:
    """Rules in the order in which they are asked, and the sessions that are remembered."""

    rules: tuple[_Compiled, ...]
    sessions: tuple[tuple[str, str], ...]  # lower-case headers: of the session, of its parent
    headers: tuple[str, ...] = field(init=False)  # those that rules ask for
    _kinds: dict[tuple[Any, ...], list[_Compiled]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", tuple(sorted(set().union(*(r.headers for r in self.rules)))))

    @classmethod
    def load(cls, user_file: Path | None = None) -> Self:
        """The shipped rules, a user's before them.

        Raises RolesError, naming file and rule, for a file that is not there or is no TOML, unknown names,
        patterns that do not compile, rules without a condition and names that stand twice.
        """
        rules: list[_Compiled] = []
        sessions: list[tuple[str, str]] = []
        for path in [SHIPPED] if user_file is None else [user_file, SHIPPED]:
            more_rules, more_sessions = _read(path)
            rules += more_rules
            sessions += [pair for pair in more_sessions if pair not in sessions]
        return cls(tuple(rules), tuple(sessions))

    def role(
        self,
        request: Request,
        headers: Mapping[str, str],
        memory: dict[str, str],
        made_by: MadeBy = lambda _tool_call_id: None,
    ) -> str:
        """The role of a request; never raises.

        Header names are lower case.  `memory` is the execution's own, empty at first, and is changed.
        """
        asked = _Asked(request, headers)
        flags: set[str] = {"sub-agent"} if self._remembered(headers, memory) else set()
        for rule in self._asked(request, headers):
            if rule.holds(asked):
                flags |= rule.sets
                if rule.final:
                    break
        if "auxiliary" in flags:
            return "auxiliary"
        summary = "summary" in flags
        if "sub-agent" in flags or (summary and _of_sub_agent(request, made_by)):
            return "sub-agent-summary" if summary else "sub-agent"
        return "main-summary" if summary else "main"

    def _asked(self, request: Request, headers: Mapping[str, str]) -> list[_Compiled]:
        """The rules that can hold, found once for each kind of request: of most kinds there are few."""
        present = tuple([name for name in self.headers if name in headers])
        kind = (request.dialect, request.stream, bool(request.tools), present)
        rules = self._kinds.get(kind)
        if rules is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            rules = self._kinds[kind] = [rule for rule in self.rules if rule.may(*kind)]
        return rules

    def _remembered(self, headers: Mapping[str, str], memory: dict[str, str]) -> bool:
        """Whether the request's session has a parent, as it says or as one of it said before."""
        for header, parent_header in self.sessions:
            session, parent = headers.get(header, ""), headers.get(parent_header, "")
            if not 0 < len(session) <= SESSION_CHARS_MAX:
                continue
            key = f"{header}={session}"
            if parent:
                if key not in memory and len(memory) >= SESSIONS_MAX:
                    del memory[next(iter(memory))]
                memory[key] = parent[:SESSION_CHARS_MAX]
            if key in memory:
                return True
        return False


def _of_sub_agent(request: Request, made_by: MadeBy) -> bool:
    """Whether the newest tool call of a history is one that a sub-agent's call made."""
    for message in reversed(request.messages):
        for tool_call_id in (message.call_id, *(call.id for call in message.calls)):
            role = made_by(tool_call_id) if tool_call_id else None
            if role is not None:
                return role.startswith("sub-agent")
    return False


# ---------------------------------------------------------------------------------------- files
def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RolesError(f"{name}: the pattern {pattern!r} does not compile: {error}") from error


def _pattern(name: str, pattern: str | None) -> re.Pattern[str] | None:
    return None if pattern is None else _compiled(name, pattern)


def _read(path: Path) -> tuple[list[_Compiled], list[tuple[str, str]]]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RolesError(
            f"{path} is not there; the setting proxy.role_rules names a TOML file of rules"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RolesError(f"{path}: {error}") from error
    if unknown := data.keys() - {"rule", "session"}:
        known = "[[rule]] and [[session]] are known"
        raise RolesError(f"{path}: unknown at the top: {', '.join(sorted(unknown))}; {known}")
    rules, names = [], set[str]()
    for number, table in enumerate(_tables(path, data, "rule"), 1):
        rule = _converted(path, "rule", number, table, _Rule)
        where = f"{path}: rule {number} ({rule.name!r})"
        if rule.name in names:
            raise RolesError(f"{where}: another rule of the file has that name")
        names.add(rule.name)
        try:
            rules.append(_Compiled(rule))
        except RolesError as error:
            raise RolesError(f"{where}: {error}") from error
    sessions = []
    for number, table in enumerate(_tables(path, data, "session"), 1):
        session = _converted(path, "session", number, table, _Session)
        sessions.append((session.header.lower(), session.parent.lower()))
    return rules, sessions


def _tables(path: Path, data: dict[str, Any], name: str) -> list[Any]:
    tables = data.get(name, [])
    if not isinstance(tables, list):
        raise RolesError(f"{path}: {name} is one table; write [[{name}]] with two brackets")
    return tables


def _converted(path: Path, kind: str, number: int, table: Any, form: type[_T]) -> _T:
    name = table.get("name") if isinstance(table, dict) else None
    try:
        return msgspec.convert(table, form)
    except msgspec.ValidationError as error:
        raise RolesError(f"{path}: {kind} {number} ({name!r}): {error}") from error
