"""OpenHands' own agent with its terminal and its editor:  openhands_agent.py chat PROMPT"""

from __future__ import annotations

import os

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr
from shell import MODEL, TASK

llm = LLM(
    usage_id="agent",
    model=f"openai/{MODEL}",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
)
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
conversation = Conversation(agent=agent, workspace=os.getcwd())
conversation.send_message(TASK)
conversation.run()
