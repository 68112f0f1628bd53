"""Anthropic's requests: what clients were seen to send (harness notes), folded to the neutral form."""

from __future__ import annotations

import json

import pytest

from ingest.proxy.dialects.anthropic import Anthropic
from ingest.proxy.dialects.anthropic_stream import WHOLE_INPUT
from ingest.proxy.neutral import Message, Rejected, Request, Sampling, ToolCall
from ingest.proxy.rendering import Renderer
from tests.support.tiny_model import TEMPLATE, make_tokenizer

DIALECT = Anthropic()
TOKENIZER = make_tokenizer()
RENDERER = Renderer(TOKENIZER, TEMPLATE, {}, [TOKENIZER.token_to_id("<|im_end|>")])
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def parse(*messages, headers=None, **body) -> Request:
    body = {"model": "m", "max_tokens": 100, "messages": list(messages)} | body
    return DIALECT.parse(json.dumps(body).encode(), headers or {})


def refused(*messages, **body) -> str:
    with pytest.raises(Rejected) as caught:
        parse(*(messages or [user("u")]), **body)
    assert caught.value.status == 400
    return caught.value.sentence


def text(value, **fields):
    return {"type": "text", "text": value, **fields}


def user(*content):
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content):
    return {"role": "assistant", "content": content[0] if isinstance(content[0], str) else list(content)}


def use(name="bash", call_id="call_1", **arguments):
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(content, call_id="call_1", **fields):
    return {"tool_use_id": call_id, "type": "tool_result", "content": content, **fields}


def tool(name, **fields):
    return {"name": name, "description": f"what {name} does", "input_schema": SCHEMA, **fields}


def rendered(request: Request) -> str:
    return RENDERER.render(request.messages, request.tools, request.options, now_us=0).text


# ---------------------------------------------------------------------------------- system
def test_case_13_the_nonce_of_the_first_system_block_is_not_in_the_prompt():
    requests = [
        parse(
            user("u"),
            system=[
                text(f"x-anthropic-billing-header: cc_version=2.1.332.{n}; cc_entrypoint=cli; cch={n};"),
                text("You are Claude Code.", **EPHEMERAL),
                text("\nBe good."),
            ],
        )
        for n in ("b37", "00c")
    ]
    assert requests[0] == requests[1]
    assert requests[0].messages[0] == Message("system", "You are Claude Code.\n\nBe good.")
    assert "billing" not in rendered(requests[0])


def test_a_billing_line_in_a_system_string_goes_alone():
    request = parse(user("u"), system="x-anthropic-billing-header: cch=1;\nYou are Claude Code.")
    assert request.messages[0] == Message("system", "You are Claude Code.")
    assert parse(user("u"), system="x-anthropic-billing-header: cch=1;").messages == (Message("user", "u"),)


@pytest.mark.parametrize("system", ["", [], [text("")], None])
def test_no_system_text_is_no_system_message(system):
    assert parse(user("u"), system=system).messages == (Message("user", "u"),)


def test_case_12_a_mid_list_system_message_is_the_same_as_list_and_as_string():
    """Claude Code: the block that carried `cache_control` is a plain string in the next request."""
    first = parse(user("u"), {"role": "system", "content": [text("# Environment", **EPHEMERAL)]})
    later = parse(user("u"), {"role": "system", "content": "# Environment"}, assistant("a"), user("and now?"))
    assert [m.role for m in later.messages] == ["user", "system", "assistant", "user"]
    assert later.messages[:2] == first.messages
    body = RENDERER.render(first.messages, now_us=0).body
    assert rendered(later).startswith(body)


# -------------------------------------------------------------------------------- messages
@pytest.mark.parametrize("make", [user, assistant])
def test_a_string_is_one_text_block_and_empty_blocks_vanish(make):
    right = parse(make("hello")).messages
    assert parse(make(text("hello"))).messages == right
    assert parse(make(text(""), text("hello", **EPHEMERAL), text(""))).messages == right


def test_user_texts_are_parted_and_assistant_texts_put_together():
    assert parse(user(text("<reminder>"), text("do it"))).messages[0].text == "<reminder>\ndo it"
    assert parse(assistant(text("Accord"), text("ing to it"))).messages[0].text == "According to it"


def test_tool_results_and_texts_come_in_the_order_received():
    request = parse(
        user(text("before"), result("r"), result([text("a"), text("b")], "call_2"), text("go on"))
    )
    assert request.messages == (
        Message("user", "before"),
        Message("tool", "r", call_id="call_1", failed=False),
        Message("tool", "a\nb", call_id="call_2", failed=False),
        Message("user", "go on"),
    )


def test_tool_results_alone_make_no_user_message():
    assert [m.role for m in parse(user(result("r"), text(""))).messages] == ["tool"]
    assert parse(user(text(""))).messages == (Message("user", ""),)


@pytest.mark.parametrize(("content", "right"), [(None, ""), ("", ""), ([], ""), ([text("")], ""), ("r", "r")])
def test_results_in_every_form(content, right):
    assert parse(user(result(content))).messages[0].text == right


def test_a_failed_tool_is_told_and_false_is_absent():
    right, wrong, absent = (
        parse(user(result("r", **fields))).messages[0]
        for fields in ({"is_error": False}, {"is_error": True}, {})
    )
    assert wrong.failed is True
    assert right == absent


def test_case_18_results_of_parallel_calls_stay_in_the_order_received():
    calls = assistant(use(call_id="call_a", command="1"), use(call_id="call_b", command="2"))
    results = user(result("second", "call_b"), result("first", "call_a"))
    asked = parse(user("u"), calls, results)
    assert [m.call_id for m in asked.messages[2:]] == ["call_b", "call_a"]
    again = parse(user("u"), calls, results, assistant("done"), user("next"))
    assert again.messages[: len(asked.messages)] == asked.messages
    body = RENDERER.render(asked.messages, now_us=0).body
    assert rendered(again).startswith(body)


def test_thinking_is_reasoning_and_what_cannot_be_read_is_not_sent():
    def reasoning(*blocks):
        return parse(assistant(*blocks, text("a"))).messages[0].reasoning

    assert reasoning({"type": "thinking", "thinking": " so \n", "signature": "s"}) == " so \n"
    assert reasoning({"type": "thinking", "thinking": "", "signature": "s"}) is None
    assert reasoning({"type": "redacted_thinking", "data": "EmwK"}) is None
    assert reasoning() is None


def test_an_input_keeps_its_order_its_spaces_and_its_digits():
    given_text = '{"z" : 1.50, "big":12345678901234567890,\n "a": 1e3, "s": "\\u00e9\\/"}'
    body = (
        '{"model": "m", "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", '
        '"name": "bash", "input": ' + given_text + "}]}]}"
    )
    calls = DIALECT.parse(body.encode(), {}).messages[0].calls
    assert calls == (ToolCall("call_1", "bash", given_text),)


def test_claude_codes_marker_of_malformed_arguments_is_the_arguments_again():
    raw = '{"command": "echo bad", }'
    marked = use(**{"__unparsedToolInput": {"raw": raw, "len": len(raw)}})
    assert parse(assistant(marked)).messages[0].calls[0].arguments == raw
    cut = use(**{"__unparsedToolInput": {"raw": raw, "len": 9_000}})
    assert json.loads(parse(assistant(cut)).messages[0].calls[0].arguments) == cut["input"]


def test_half_a_surrogate_pair_is_mended_and_numbers_are_left_alone():
    body = b'{"messages": [{"role": "user", "content": "cut \\ud83d"}, {"role": "assistant", "content": '
    body += b'[{"type": "tool_use", "id": "c", "name": "n", "input": {"a": "\\ude00", "n": 1.50}}]}]}'
    said, called = DIALECT.parse(body, {}).messages
    assert said.text == "cut \ufffd"
    assert called.calls[0].arguments == '{"a": "\\ufffd", "n": 1.50}'


def test_blocks_of_servers_are_folded_to_text():
    found = {"type": "web_search_result", "title": "T", "url": "http://u", "encrypted_content": "Eo8"}
    request = parse(
        assistant(
            text("I look. "),
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]},
            text("Found."),
        )
    )
    assert request.messages[0].text == (
        'I look. <server_tool_use>\nweb_search {"query": "q"}\n</server_tool_use>\n'
        "<web_search_tool_result>\nT\nhttp://u\n</web_search_tool_result>\nFound."
    )
    failed = {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"error_code": "unavailable"}}
    assert "unavailable" in parse(assistant(failed)).messages[0].text


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}


@pytest.mark.parametrize(
    "block", [IMAGE, DOCUMENT, {"type": "container_upload", "file_id": "f"}, {"type": "new"}]
)
def test_what_cannot_be_read_is_refused_by_name_and_place(block):
    kind = repr(block["type"])
    assert f"messages[0].content[1]: a block of type {kind}" in refused(user(text("see"), block))
    if block not in (IMAGE, DOCUMENT):
        assert f"messages[0].content[0].content[0]: a block of type {kind}" in refused(user(result([block])))
    assert f"messages[0].content[0]: a block of type {kind}" in refused(assistant(block))
    assert f"system[0]: a block of type {kind}" in refused(system=[block])


def test_an_image_that_a_tool_brought_back_ends_no_run():
    (message,) = parse(user(result([{"type": "text", "text": "a plot:"}, IMAGE]))).messages
    assert message.text == "a plot:\n[image: not shown, this model reads text only]"


def test_blocks_in_the_wrong_role_and_unknown_roles_are_refused():
    assert "'tool_use'" in refused(user(use()))
    assert "role 'tool'" in refused({"role": "tool", "content": "r"})
    assert "without text" in refused(user({"type": "text"}))


# ----------------------------------------------------------------------------------- tools
def test_tools_come_in_the_form_of_chat_completions():
    request = parse(user("u"), tools=[tool("bash", **EPHEMERAL), {"name": "ls", "input_schema": {}}])
    assert request.tools == (
        {
            "type": "function",
            "function": {"name": "bash", "description": "what bash does", "parameters": SCHEMA},
        },
        {"type": "function", "function": {"name": "ls", "description": "", "parameters": {}}},
    )


def test_a_schema_holds_any_number():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**30}}}
    request = parse(user("u"), tools=[tool("count", input_schema=schema)])
    assert request.tools[0]["function"]["parameters"] == schema
    assert request.digest("main", b"")


def test_case_14_deferred_tools_appear_at_the_reference_and_the_earlier_prefix_is_unchanged():
    twelve = [tool(f"t{k}") for k in range(11)] + [tool("ToolSearch")]
    fourteen = [*twelve[:5], *(tool(n, defer_loading=True) for n in ("TaskStop", "WebFetch")), *twelve[5:]]
    messages = [user("u"), assistant(use("ToolSearch", query="select:WebFetch,TaskStop"))]
    references = [{"type": "tool_reference", "tool_name": n} for n in ("WebFetch", "TaskStop")]
    before = parse(*messages, tools=twelve)
    after = parse(*messages, user(result(references), text("Tool loaded.")), tools=fourteen)
    assert after.tools == before.tools
    assert after.messages[:2] == before.messages
    assert rendered(after).startswith(RENDERER.render(before.messages, before.tools, now_us=0).body)
    schemas = [json.loads(line) for line in after.messages[2].text.splitlines()[1:-1]]
    assert [s["function"]["name"] for s in schemas] == ["WebFetch", "TaskStop"]
    assert schemas[0]["function"]["parameters"] == SCHEMA
    assert [t["function"]["name"] for t in after.deferred] == ["TaskStop", "WebFetch"]
    assert "TaskStop" not in rendered(parse(*messages, tools=fourteen)).partition("<|im_end|>")[0]


def test_a_reference_to_no_tool_is_refused_by_name():
    references = [{"type": "tool_reference", "tool_name": "Gone"}]
    assert "'Gone', which is not in tools" in refused(user(result(references)), tools=[tool("bash")])


def test_tools_come_and_go_in_mid_list_system_messages():
    """`tool_addition` and `tool_removal` of Claude Code's beta mid-conversation-tool-changes."""
    named = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "WebFetch"}, **EPHEMERAL}
    defined = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("extra")}}
    elsewhere = {"type": "tool_addition", "tool": {"type": "mcp_toolset_reference", "server_name": "s"}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "extra"}}
    first = parse(user("u"), tools=[tool("bash")])
    later = parse(
        user("u"),
        {"role": "system", "content": [text("New:"), named, defined, elsewhere, gone]},
        tools=[tool("WebFetch", defer_loading=True), tool("bash")],
    )
    assert later.tools == first.tools
    assert later.messages[0] == first.messages[0]
    before, *schemas, after, sentence = later.messages[1].text.splitlines()[1:]
    assert [json.loads(s)["function"]["name"] for s in schemas] == ["WebFetch", "extra"]
    assert (before, after, sentence) == ("<tools>", "</tools>", "The tool extra is no longer available.")
    assert [t["function"]["name"] for t in later.deferred] == ["WebFetch", "extra"]
    assert "'Gone', which is not in tools" in refused(
        {"role": "system", "content": [named | {"tool": {"type": "tool_reference", "name": "Gone"}}]}
    )


def test_servers_tools_are_left_out_and_those_with_a_built_in_schema_get_it():
    request = parse(
        user("u"),
        tools=[
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
            {"type": "code_execution_20250825", "name": "code_execution"},
            {"type": "mcp_toolset", "mcp_server_name": "s"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"type": "memory_20250818", "name": "memory"},
            {"type": "custom", **tool("mine")},
        ],
    )
    names = [t["function"]["name"] for t in request.tools]
    assert names == ["bash", "str_replace_based_edit_tool", "memory", "mine"]
    assert "command" in request.tools[0]["function"]["parameters"]["properties"]


def test_where_the_apis_own_search_would_find_tools_none_is_deferred():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    request = parse(user("u"), tools=[search, tool("bash", defer_loading=True)])
    assert [t["function"]["name"] for t in request.tools] == ["bash"]
    assert request.deferred == ()


def test_tools_that_the_policy_cannot_know_are_refused():
    screen = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024}
    assert "tools[0] ('computer', type 'computer_20250124')" in refused(tools=[screen])
    assert "input_schema" in refused(tools=[{"name": "bash"}])
    assert "name is missing" in refused(tools=[{"input_schema": {}}])


def test_tool_choice_none_leaves_the_tools_out():
    assert parse(user("u"), tools=[tool("bash")], tool_choice={"type": "none"}).tools == ()
    assert len(parse(user("u"), tools=[tool("bash")], tool_choice={"type": "auto"}).tools) == 1


# ------------------------------------------------------------------------------- the rest
def test_sampling_and_limits():
    request = parse(user("u"), temperature=0.7, top_p=0.9, top_k=20, max_tokens=128_000, stream=True)
    assert request.sampling == Sampling(0.7, 0.9, 20)
    assert (request.new_tokens_max, request.stream, request.model) == (128_000, True, "m")
    assert parse(user("u"), top_k=0, max_tokens=None).new_tokens_max is None
    assert parse(user("u")).sampling == Sampling()


@pytest.mark.parametrize(
    ("thinking", "options"),
    [
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 4000}, {}),
        ({"type": "adaptive", "display": "omitted"}, {}),
        (None, {}),
    ],
)
def test_thinking_can_be_turned_off(thinking, options):
    assert parse(user("u"), thinking=thinking).options == options


def test_what_does_not_change_the_sampling_is_let_pass():
    request = parse(
        user("u"),
        metadata={"user_id": '{"session_id":"s"}'},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        service_tier="auto",
        stop_sequences=[],
        betas=["x"],
    )
    assert request == parse(user("u"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("stop_sequences", ["\n\nHuman:"]),
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool", "name": "bash"}),
        ("output_config", {"format": {"type": "json_schema", "schema": {}}}),
        ("temperature", -1),
        ("top_p", 0),
        ("top_k", -5),
        ("max_tokens", 0),
        ("max_tokens", "many"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field, value):
    assert field in refused(**{field: value})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"messages": 1}', b"\xff", b'{"messages": ' + b"[" * 9_999]
)
def test_what_is_no_request_is_refused(body):
    with pytest.raises(Rejected) as caught:
        DIALECT.parse(body, {})
    assert caught.value.status == 400


def test_the_sdks_stream_helper_is_known_by_its_header():
    helped = parse(user("u"), headers={"x-stainless-helper-method": "stream"})
    assert helped.names[WHOLE_INPUT]
    assert not parse(user("u")).names[WHOLE_INPUT]


def test_counts_and_models():
    assert json.loads(DIALECT.counted(42)) == {"input_tokens": 42}
    card = {"type": "model", "id": "m", "display_name": "m", "created_at": "1970-01-01T00:00:00Z"}
    assert json.loads(DIALECT.model("m")) == card
    page = {"data": [card], "has_more": False, "first_id": "m", "last_id": "m"}
    assert json.loads(DIALECT.models(["m"])) == page
    assert json.loads(DIALECT.models([])) == {
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }
