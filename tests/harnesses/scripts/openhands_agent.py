"""OpenHands' own agent with its terminal and its editor:  openhands_agent.py chat|condensed PROMPT"""

from __future__ import annotations

import os

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.context.condenser import LLMSummarizingCondenser, NoOpCondenser
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr
from shell import KIND, MODEL, TASK

llm = LLM(
    usage_id="agent",
    model=f"openai/{MODEL}",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
)
condenser = NoOpCondenser()
if KIND == "condensed":
    condenser = LLMSummarizingCondenser(
        llm=llm.model_copy(update={"usage_id": "condenser"}), max_size=8, keep_first=2
    )
tools = [Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)]
agent = Agent(llm=llm, tools=tools, condenser=condenser)
conversation = Conversation(agent=agent, workspace=os.getcwd())
conversation.send_message(TASK)
conversation.run()
