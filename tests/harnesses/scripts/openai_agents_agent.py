"""An agent on openai-agents:  openai_agents_agent.py chat|responses[-streamed] PROMPT"""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from shell import DESCRIPTION, KIND, MODEL, STREAMED, SYSTEM, TASK, shell


@function_tool(description_override=DESCRIPTION)
def bash(command: str, large: int = 0) -> str:
    return shell(command)


async def main() -> None:
    set_tracing_disabled(True)
    form = OpenAIChatCompletionsModel if KIND == "chat" else OpenAIResponsesModel
    model = form(model=MODEL, openai_client=AsyncOpenAI())
    agent = Agent(name="agent", instructions=SYSTEM, tools=[bash], model=model)
    if STREAMED:
        result = Runner.run_streamed(agent, TASK)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, TASK)
    print(result.final_output)


asyncio.run(main())
