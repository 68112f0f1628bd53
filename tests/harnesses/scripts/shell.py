"""What the agents on SDKs share: how they are called, and their one tool.

    SCRIPT.py HOW PROMPT

The address and the key come to the SDKs in their own variables, as `headrace rollout` sets them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

HOW, TASK = sys.argv[1:]
KIND, STREAMED = HOW.removesuffix("-streamed"), HOW.endswith("-streamed")
MODEL, SYSTEM = os.environ["HEADRACE_MODEL"], "You help."
DESCRIPTION = "Run a command in a shell."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "large": {"type": "integer"}},
    "required": ["command"],
}
TOOL = {"name": "bash", "description": DESCRIPTION, "parameters": PARAMETERS}


def shell(command: str) -> str:
    """What a command prints."""
    done = subprocess.run(command, check=False, shell=True, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr or "(nothing)"


def run(name: str, arguments: Any) -> str:
    """The result of a tool call; `arguments` as JSON text or decoded.  An error is a result too."""
    if name != "bash":
        return f"error: there is no tool {name!r}"
    try:
        return shell((json.loads(arguments) if isinstance(arguments, str) else arguments)["command"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error!r}"
