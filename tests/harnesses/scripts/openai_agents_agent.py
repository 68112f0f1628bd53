"""An agent on openai-agents:  openai_agents_agent.py chat|responses|delegating[-streamed] PROMPT"""

from __future__ import annotations

import asyncio
import os

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    Tool,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from shell import DESCRIPTION, KIND, MODEL, STREAMED, SYSTEM, TASK, shell


@function_tool(description_override=DESCRIPTION)
def bash(command: str, large: int = 0) -> str:
    return shell(command)


def model(url: str | None = None) -> Model:
    form = OpenAIResponsesModel if KIND == "responses" else OpenAIChatCompletionsModel
    return form(model=MODEL, openai_client=AsyncOpenAI(base_url=url))


def delegate() -> Tool:
    """An agent as a tool.  Nothing in its requests says so: its address does."""
    url = os.environ["HEADRACE_BASE_URL"] + "/sub-agent/v1"
    worker = Agent(name="worker", instructions="You do one thing.", tools=[bash], model=model(url))
    return worker.as_tool("delegate", "Give a task to a worker.")


async def main() -> None:
    set_tracing_disabled(True)
    tools: list[Tool] = [bash, delegate()] if KIND == "delegating" else [bash]
    agent = Agent(name="agent", instructions=SYSTEM, tools=tools, model=model())
    if STREAMED:
        result = Runner.run_streamed(agent, TASK)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, TASK)
    print(result.final_output)


asyncio.run(main())
