"""Roles of calls: what was measured of each client, a user's own rules, bad files, any request."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.proxy.neutral import Message, Request, ToolCall
from ingest.proxy.roles import SESSIONS_MAX, TEXT_CHARS, Roles, RolesError
from lake.events import ROLES

SHIPPED = Roles.load()
TOOLS = ({"type": "function", "function": {"name": "bash", "parameters": {}}},)


def asked(system="You help.", user="Do it.", *, tools=True, dialect="chat", stream=True, more=()):
    """A request as a dialect gives it: a system message, a user's, then `more`."""
    messages = (Message("system", system),) if system else ()
    messages = (*messages, Message("user", user), *more)
    return Request(dialect=dialect, messages=messages, tools=TOOLS if tools else (), stream=stream, model="m")


def turn(**fields):
    return {"x-codex-turn-metadata": json.dumps({"session_id": "s", "turn_id": "1"} | fields)}


CLAUDE = "You are Claude Code, Anthropic's official CLI for Claude."
CRITICAL = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a summary"
CODEX = "You are Codex, a coding agent"
OPENCODE = "You are opencode, an interactive CLI tool"
QWEN = "You are Qwen Code, an interactive CLI agent developed by Alibaba Group"
QWEN_RULES = (
    "\n\nImportant Rules:\n - You operate in non-interactive mode: do not ask the user questions; "
    "proceed with available context."
)
EXTRACTION = "You are now acting as the managed memory extraction subagent for an AI coding assistant."
COMPRESSION = "You are the component that summarizes internal chat history into a given structure."
WARM_COMPRESSION = (
    "You are the component that summarizes a conversation when its context window is about to overflow."
)
SUMMARISER = (
    "You are a context summarization agent. You are given a conversation between a user and an agent."
)
COMMIT = (
    "You are an expert software engineer that generates concise, \n"
    "one-line Git commit messages based on the provided diffs.\n"
)
ended = (Message("user", CRITICAL),)

SHAPES = {
    "Claude Code": (asked(CLAUDE, dialect="anthropic"), {"x-app": "cli"}, "main"),
    "Claude Code, summary with its tools": (
        asked(CLAUDE, dialect="anthropic", more=ended),
        {},
        "main-summary",
    ),
    "Claude Code, reminders before": (
        asked(CLAUDE, "<system-reminder>x</system-reminder>\n" + CRITICAL, dialect="anthropic"),
        {},
        "main-summary",
    ),
    "Claude Code, a task that quotes it": (
        asked(CLAUDE, f"Explain what '{CRITICAL}' is for.", dialect="anthropic"),
        {},
        "main",
    ),
    "Claude Code, after a summary": (
        asked(CLAUDE, "This session is being continued from a previous conversation", dialect="anthropic"),
        {},
        "main",
    ),
    "Claude Code, a file that quotes it": (
        asked(CLAUDE, dialect="anthropic", more=(Message("tool", CRITICAL, call_id="call_000001_00"),)),
        {},
        "main",
    ),
    "Claude Code, agent": (asked(dialect="anthropic"), {"x-claude-code-agent-id": "a1f"}, "sub-agent"),
    "Claude Code, nested agent": (
        asked(dialect="anthropic"),
        {"x-claude-code-agent-id": "b2", "x-claude-code-parent-agent-id": "a1f"},
        "sub-agent",
    ),
    "Claude Code, agent's summary": (
        asked(dialect="anthropic", more=ended),
        {"x-claude-code-agent-id": "a1f"},
        "sub-agent-summary",
    ),
    "Claude Code, class": (asked(), {"x-claude-code-request-class": "auxiliary"}, "auxiliary"),
    "Codex": (asked(CODEX, dialect="responses"), turn(request_kind="turn", thread_source="user"), "main"),
    "Codex, compaction": (
        asked(CODEX, dialect="responses", tools=False),
        turn(request_kind="compaction", thread_source="user", compaction={"trigger": "auto"}),
        "main-summary",
    ),
    "Codex, sub-agent": (
        asked(CODEX, dialect="responses"),
        turn(request_kind="turn", thread_source="subagent", subagent_kind="thread_spawn")
        | {"x-openai-subagent": "collab_spawn"},
        "sub-agent",
    ),
    "Codex, sub-agent without metadata": (asked(), {"x-openai-subagent": "review"}, "sub-agent"),
    "Codex, sub-agent's compaction": (
        asked(CODEX, dialect="responses", tools=False),
        turn(request_kind="compaction", thread_source="subagent") | {"x-openai-subagent": "collab_spawn"},
        "sub-agent-summary",
    ),
    "Codex, compaction by header": (asked(tools=False), {"x-openai-subagent": "compact"}, "main-summary"),
    "Codex, memory": (asked(), {"x-openai-subagent": "memory_consolidation"}, "auxiliary"),
    "Codex, no JSON": (asked(), {"x-codex-turn-metadata": "{"}, "main"),
    "OpenCode": (asked(OPENCODE), {"x-session-id": "ses_1"}, "main"),
    "OpenCode, summary": (asked(SUMMARISER, tools=False), {"x-session-id": "ses_1"}, "main-summary"),
    "OpenCode, agent with the same system": (
        asked(OPENCODE),
        {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"},
        "sub-agent",
    ),
    "OpenCode, title": (
        asked("You are a title generator. You output ONLY a thread title.", tools=False),
        {"x-session-id": "ses_1"},
        "auxiliary",
    ),
    "Qwen Code": (asked(QWEN), {}, "main"),
    "Qwen Code, agent": (asked("You are a general-purpose agent. Given" + QWEN_RULES), {}, "sub-agent"),
    "Qwen Code, own agent": (asked("You find bugs in Rust." + QWEN_RULES), {}, "sub-agent"),
    "Qwen Code, summary": (asked("\n" + COMPRESSION, tools=False, stream=False), {}, "main-summary"),
    "Qwen Code, summary in the conversation": (
        asked(QWEN, more=(Message("assistant", "done"), Message("user", WARM_COMPRESSION))),
        {},
        "main-summary",
    ),
    "Qwen Code, memory": (asked(EXTRACTION + QWEN_RULES), {}, "auxiliary"),
    "aider": (asked("Act as an expert software developer.", tools=False), {}, "main"),
    "aider, commit message": (asked(COMMIT, tools=False, stream=False), {}, "auxiliary"),
    "aider, summary": (
        asked("*Briefly* summarize this partial conversation about programming.", tools=False, stream=False),
        {},
        "main-summary",
    ),
    "pi": (asked("You are an expert coding assistant operating inside pi"), {}, "main"),
    "pi, summary": (asked("You are a context summarization assistant.", tools=False), {}, "main-summary"),
    "mini-swe-agent": (asked("You are a helpful assistant that can interact", stream=False), {}, "main"),
    "OpenHands": (asked("You are OpenHands agent", stream=False), {}, "main"),
    "OpenHands, condenser": (
        asked("You are maintaining a context-aware state summary for an interactive agent.\n", tools=False),
        {},
        "main-summary",
    ),
    "an SDK": (asked("", tools=False, stream=False), {}, "main"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_each_client_s_calls_have_their_roles(name):
    request, headers, role = SHAPES[name]
    assert SHIPPED.role(request, headers, {}) == role


SUB, SUB_SUMMARY = asked(OPENCODE), asked(SUMMARISER, tools=False)


def test_a_sub_agent_s_summary_without_its_parent_is_known_by_its_session():
    memory = {}
    ask = SHIPPED.role
    assert ask(SUB, {"x-session-id": "ses_1"}, memory) == "main"
    assert ask(SUB, {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, memory) == "sub-agent"
    assert ask(SUB_SUMMARY, {"x-session-id": "ses_2"}, memory) == "sub-agent-summary"
    assert ask(SUB_SUMMARY, {"x-session-id": "ses_1"}, memory) == "main-summary"
    assert ask(SUB, {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, memory) == "sub-agent"


def test_after_a_restart_a_summary_is_of_whoever_made_its_newest_tool_call():
    made = {"call_000003_00": "main", "call_000007_01": "sub-agent"}

    def with_calls(*ids):
        more = [
            m
            for i in ids
            for m in (
                Message("assistant", "", calls=(ToolCall(i, "bash", "{}"),)),
                Message("tool", "x", call_id=i),
            )
        ]
        return asked(SUMMARISER, tools=False, more=(*more, Message("user", "Summarise.")))

    ask = SHIPPED.role
    headers = {"x-session-id": "ses_2"}
    assert ask(with_calls("call_000003_00", "call_000007_01"), headers, {}, made.get) == "sub-agent-summary"
    assert ask(with_calls("call_000007_01", "call_000003_00"), headers, {}, made.get) == "main-summary"
    assert ask(with_calls("call_000007_01", "theirs"), headers, {}, made.get) == "sub-agent-summary"
    assert ask(with_calls(), headers, {}, made.get) == "main-summary"
    main = asked(OPENCODE, more=(Message("tool", "x", call_id="call_000007_01"),))
    assert ask(main, headers, {}, made.get) == "main"  # only a summary is of somebody else


def test_the_memory_of_sessions_is_bounded():
    memory = {}
    for k in range(SESSIONS_MAX + 10):
        SHIPPED.role(SUB, {"x-session-id": f"s{k}", "x-parent-session-id": "p" * 1000}, memory)
    SHIPPED.role(SUB, {"x-session-id": "s" * 1000, "x-parent-session-id": "p"}, memory)
    assert len(memory) == SESSIONS_MAX
    assert "x-session-id=s9" not in memory
    assert max(map(len, memory.values())) <= 256


OWN = """
[[rule]]
name = "a critic"
is = ["sub-agent"]
[rule.when]
headers = {X-Title = "^critic"}
json = {X-Meta = {"turn.number" = "^1$", "turn.last" = "true"}}
first_user = "Judge"
stream = false
model = "^m$"

[[rule]]
name = "Qwen Code's memory is the main agent here"
is = []
final = true
when.system = "managed memory"

[[session]]
name = "mine"
header = "X-Me"
parent = "X-Above"
"""


def test_a_user_s_rules_come_first(tmp_path):
    path = tmp_path / "roles.toml"
    path.write_text(OWN)
    roles = Roles.load(path)
    meta = json.dumps({"turn": {"number": 1, "last": True}})
    headers = {"x-title": "critic 7", "x-meta": meta}
    critic = asked(user="Judge this.", stream=False)
    assert roles.role(critic, headers, {}) == "sub-agent"
    assert roles.role(critic, headers | {"x-meta": "[]"}, {}) == "main"
    assert roles.role(critic, headers | {"x-title": "a critic"}, {}) == "main"
    assert roles.role(asked(user="Judge this."), headers, {}) == "main"
    assert SHIPPED.role(asked(EXTRACTION), {}, {}) == "auxiliary"
    assert roles.role(asked(EXTRACTION), {}, {}) == "main"
    memory = {}
    assert roles.role(SUB, {"x-me": "2", "x-above": "1"}, memory) == "sub-agent"
    assert roles.role(SUB, {"x-me": "2"}, memory) == "sub-agent"
    for name in ("Claude Code, agent's summary", "OpenCode, title"):
        request, headers, role = SHAPES[name]
        assert roles.role(request, headers, {}) == role


RULE = '[[rule]]\nname = "a"\nis = ["summary"]\n'
BAD = {
    "nothing is TOML": ("[[rule", r"roles.toml: "),
    "unknown at the top": ("[rules]\n", "unknown at the top: rules"),
    "one bracket": ("[rule]\nname = 'a'\n", r"write \[\[rule\]\] with two"),
    "no when": (RULE, r"rule 1 \('a'\): .*`when`"),
    "empty when": (RULE + "when = {}\n", r"rule 1 \('a'\): `when` says nothing"),
    "unknown condition": (RULE + "when.user = 'x'\n", r"rule 1 \('a'\): .*`user`"),
    "unknown flag": (RULE.replace("summary", "main") + "when.model = 'x'\n", r"rule 1 \('a'\): .*'main'"),
    "no such dialect": (RULE + "when.dialect = 'cohere'\n", r"'cohere'"),
    "no pattern": (RULE + "when.headers = {x-a = '('}\n", r"rule 1 \('a'\): headers.x-a: the pattern '\('"),
    "no pattern in JSON": (RULE + "when.json = {x-a = {b = '['}}\n", r"json.x-a.b: the pattern"),
    "no name": ('[[rule]]\nis = []\nwhen.model = "x"\n', r"rule 1 \(None\): .*`name`"),
    "twice": (2 * (RULE + "when.model = 'x'\n"), r"rule 2 \('a'\): another rule"),
    "session": ("[[session]]\nname = 's'\nheader = 'x'\n", r"session 1 \('s'\): .*`parent`"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_by_name(name, tmp_path):
    text, sentence = BAD[name]
    path = tmp_path / "roles.toml"
    path.write_text(text)
    with pytest.raises(RolesError, match=sentence) as error:
        Roles.load(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RolesError, match=r"is not there; the setting proxy\.role_rules"):
        Roles.load(tmp_path / "none.toml")
    with pytest.raises(RolesError, match="directory"):
        Roles.load(tmp_path)


NAMES = st.sampled_from(
    [
        "x-session-id",
        "x-parent-session-id",
        "x-codex-turn-metadata",
        "x-openai-subagent",
        "x-claude-code-agent-id",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v) | st.dictionaries(st.sampled_from(["thread_source", "request_kind", "a"]), v),
    max_leaves=5,
)
VALUES = st.text(max_size=20) | JSON.map(json.dumps) | st.sampled_from(["[" * 60_000, "{", "\ud800"])
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(max_size=20) | st.sampled_from([CRITICAL, EXTRACTION, SUMMARISER, COMMIT]),
    calls=st.lists(
        st.builds(ToolCall, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)), max_size=2
    ).map(tuple),
    call_id=st.text(max_size=5),
)
REQUESTS = st.builds(
    Request,
    dialect=st.sampled_from(["chat", "responses", "anthropic", "?"]),
    messages=st.lists(MESSAGES, max_size=5).map(tuple),
    tools=st.sampled_from([(), TOOLS]),
    stream=st.booleans(),
    model=st.text(max_size=5),
)  # fmt: skip


@given(
    st.lists(st.tuples(REQUESTS, st.dictionaries(NAMES, VALUES))),
    st.sampled_from([None, "main", "sub-agent", "x"]),
)
def test_every_request_has_a_role(requests, made):
    memory = {}
    for request, headers in requests:
        assert SHIPPED.role(request, headers, memory, lambda _: made) in ROLES


def test_a_role_costs_no_more_with_a_long_history():
    """Of a megabyte in the middle nothing is looked at; of a long prompt its beginning is."""

    class Untouched(Message, frozen=True):
        def __getattribute__(self, name):
            assert name in ("role", "__class__"), name
            return super().__getattribute__(name)

    middle = tuple(Untouched("assistant", "x" * 1000) for _ in range(1000))
    request = asked(QWEN + "x" * (1 << 20), "y" * (1 << 20), more=(*middle, Message("user", "z" * (1 << 20))))
    began = time.process_time()
    for _ in range(100):
        assert SHIPPED.role(request, {}, {}) == "main"
    print(f"{(time.process_time() - began) * 1e4:.0f} us a call")
    far = asked("x" * TEXT_CHARS + QWEN_RULES)
    assert SHIPPED.role(far, {}, {}) == "main"
