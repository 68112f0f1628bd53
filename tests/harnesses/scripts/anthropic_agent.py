"""An agent on the Anthropic SDK:  anthropic_agent.py messages[-streamed] PROMPT"""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from shell import DESCRIPTION, MODEL, PARAMETERS, STREAMED, SYSTEM, TASK, run

CLIENT = Anthropic()
ASKING: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 4000,
    "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "bash", "description": DESCRIPTION, "input_schema": PARAMETERS}],
    "thinking": {"type": "enabled", "budget_tokens": 2000},
}


def asked(messages: list[Any]) -> Any:
    if not STREAMED:
        return CLIENT.messages.create(messages=messages, **ASKING)
    with CLIENT.messages.stream(messages=messages, **ASKING) as stream:
        return stream.get_final_message()


counted = CLIENT.messages.count_tokens(
    model=MODEL, system=SYSTEM, messages=[{"role": "user", "content": TASK}]
)
assert counted.input_tokens > 0
assert [m.id for m in CLIENT.models.list()]
messages: list[Any] = [{"role": "user", "content": TASK}]
while True:
    reply = asked(messages)
    assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > 0
    messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
    calls = [block for block in reply.content if block.type == "tool_use"]
    if not calls:
        break
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": run(c.name, c.input)} for c in calls]
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in reply.content if block.type == "text"))
