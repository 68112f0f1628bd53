"""An agent on LangChain:  langchain_agent.py chat|responses|anthropic|summarised[-streamed] PROMPT"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.tools import tool
from shell import DESCRIPTION, KIND, MODEL, STREAMED, SYSTEM, TASK, shell


@tool(description=DESCRIPTION)
def bash(command: str, large: int = 0) -> str:
    return shell(command)


def model() -> Any:
    if KIND == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(
            model_name=MODEL, max_tokens_to_sample=4000, streaming=STREAMED,
            thinking={"type": "enabled", "budget_tokens": 2000}, timeout=None, stop=None,
        )  # fmt: skip
    from langchain_openai import ChatOpenAI

    further: dict[str, Any] = {}
    if KIND == "responses":
        further = {"use_responses_api": True, "output_version": "responses/v1"}
    return ChatOpenAI(model=MODEL, streaming=STREAMED, **further)


def middleware() -> list[Any]:
    """Of the agent that keeps its history short."""
    if KIND != "summarised":
        return []
    return [SummarizationMiddleware(model(), trigger=("messages", 7), keep=("messages", 3))]


agent = create_agent(model(), [bash], system_prompt=SYSTEM, middleware=middleware())
result = agent.invoke({"messages": [{"role": "user", "content": TASK}]}, {"recursion_limit": 40})
print(result["messages"][-1].text)
