"""A harness as small as one can be: asks the model over HTTP, then does what its prompt says.

    python small_harness.py PROMPT        PROMPT holds words like  calls=2 print=3000000 exit=3 hang daemon

Only the standard library, and nothing of ours: it knows its environment, as any harness does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

DAEMON = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open({path!r} + ".part", "w").write(str(os.getpid()))
os.rename({path!r} + ".part", {path!r})
time.sleep(600)
"""


def ask(messages: list[dict[str, str]]) -> str:
    """One Chat Completions call; the text of the answer."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": 64}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.loads(answer.read())["choices"][0]["message"]["content"] or "")


def main(prompt: str) -> int:
    """Do it; the exit status."""
    wanted = dict(re.findall(r"\b(calls|print|exit|sleep)=(\d+)", prompt))
    Path("prompt.txt").write_text(prompt, encoding="utf-8", newline="")
    messages = [{"role": "user", "content": prompt}]
    for number in range(int(wanted.get("calls", 1))):
        text = ask(messages)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"go on {number}"}]
        time.sleep(float(wanted.get("sleep", 0)) / 1000)
    Path("answer.txt").write_text(str(len(messages)))
    line = "x" * 99 + "\n"
    for _ in range(int(wanted.get("print", 0)) // len(line)):
        sys.stdout.write(line)
    print("the last line", flush=True)
    if "daemon" in prompt:
        code = DAEMON.format(path=os.path.abspath("daemon.pid"))
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        while not Path("daemon.pid").exists():
            time.sleep(0.01)
    if "hang" in prompt:
        time.sleep(600)
    return int(wanted.get("exit", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
