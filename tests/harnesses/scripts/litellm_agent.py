"""An agent on LiteLLM:  litellm_agent.py openai|anthropic[-streamed] PROMPT"""

from __future__ import annotations

from typing import Any

import litellm
from shell import KIND, MODEL, STREAMED, SYSTEM, TASK, TOOL, run

ASKING: dict[str, Any] = {"model": f"{KIND}/{MODEL}", "tools": [{"type": "function", "function": TOOL}]}


def asked(messages: list[Any]) -> Any:
    if not STREAMED:
        return litellm.completion(messages=messages, **ASKING)
    chunks = list(litellm.completion(messages=messages, stream=True, **ASKING))
    return litellm.stream_chunk_builder(chunks, messages=messages)


messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
while True:
    message = asked(messages).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        said = run(call.function.name, call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
print(message.content)
