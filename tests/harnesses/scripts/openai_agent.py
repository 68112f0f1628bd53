"""An agent on the OpenAI SDK:  openai_agent.py chat|responses[-streamed] PROMPT"""

from __future__ import annotations

from typing import Any

from openai import OpenAI
from shell import KIND, MODEL, STREAMED, SYSTEM, TASK, TOOL, run

CLIENT = OpenAI()
TOOLS: Any = [{"type": "function", "function": TOOL}]


def asked(messages: list[Any]) -> Any:
    """The assistant's message, as it is sent back."""
    if not STREAMED:
        reply = CLIENT.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens > 0
        return reply.choices[0].message.to_dict()
    text, thought, usage = "", "", None
    calls: dict[int, dict[str, Any]] = {}
    stream = CLIENT.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    part.index, {"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    assert usage is not None
    assert usage.prompt_tokens > 0
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [calls[k] for k in sorted(calls)]
    return message


def chat() -> str:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    while True:
        message = asked(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message.get("content"))
        for call in message["tool_calls"]:
            said = run(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})


def responses() -> str:
    items: list[Any] = [{"role": "user", "content": TASK}]
    tools: Any = [{"type": "function", "strict": False, **TOOL}]
    while True:
        asking: dict[str, Any] = {
            "model": MODEL, "instructions": SYSTEM, "input": items, "tools": tools, "store": False,
            "include": ["reasoning.encrypted_content"],
        }  # fmt: skip
        if STREAMED:
            with CLIENT.responses.stream(**asking) as stream:
                reply = stream.get_final_response()
        else:
            reply = CLIENT.responses.create(**asking)
        assert reply.usage is not None
        assert reply.usage.input_tokens > 0
        items += [item.to_dict() for item in reply.output]
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        items += [
            {"type": "function_call_output", "call_id": c.call_id, "output": run(c.name, c.arguments)}
            for c in calls
        ]


print({"chat": chat, "responses": responses}[KIND]())
