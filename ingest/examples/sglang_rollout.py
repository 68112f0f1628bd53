"""A plain SGLang client that captures its own rollouts: several turns, a tool, a score; no proxy.

    python -m ingest.examples.sglang_rollout --run runs/mine --engine http://127.0.0.1:30000 --model FOLDER
    headrace ingest runs/mine --once
    headrace report runs/mine

The policy guesses a number; the tool says whether it is higher or lower.  Token ids are never encoded
again: the next prompt is the last one, what was sampled after it, and the new tokens of the tool's answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from tokenizers import Tokenizer

import headrace
from ingest.capturing.capture import Capture

ASKED = "I think of a number from 1 to 100. Guess it. Answer with a number only."
GENERATE_S = 600


class Chat:
    """ChatML by hand: what a conversation begins with, and what a turn adds to it, as token ids."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def begin(self, text: str) -> list[int]:
        return self._encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

    def go_on(self, text: str) -> list[int]:
        """After an answer that ended by itself, with its stop token."""
        return self._encode(f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def judge(said: str, secret: int) -> tuple[str, float]:
    """The tool: what it answers to a guess, and how good that was, 0 to 1."""
    found = re.search(r"\d{1,3}", said)
    if found is None:
        return "That is no number.", 0.0
    guess = int(found[0])
    answer = "Right!" if guess == secret else "Higher." if guess < secret else "Lower."
    return answer, 1 - min(100, abs(guess - secret)) / 100


async def generate(http: aiohttp.ClientSession, engine: str, prompt: list[int], tokens_max: int) -> bytes:
    """The body of SGLang's answer, as it came."""
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": tokens_max, "temperature": 1.0},
        "return_logprob": True,
    }
    async with http.post(f"{engine}/generate", json=body) as answer:
        content = await answer.read()
        if answer.status != 200:
            raise RuntimeError(
                f"{engine} answered {answer.status}: {content.decode(errors='replace')[:2000]}"
            )
        return content


async def rollout(
    http: aiohttp.ClientSession, given: argparse.Namespace, chat: Chat, capture: Capture, secret: int
) -> None:
    """One execution: the policy guesses until it is right, or it has no turn or no room left."""
    prompt, best = chat.begin(ASKED), 0.0
    for _ in range(given.turns):
        room = min(given.tokens_max, given.context_tokens - len(prompt))
        if room < 1:
            break
        body = await generate(http, given.engine, prompt, room)
        call, said = await asyncio.to_thread(capture.sglang, prompt, body)
        text = chat.text(said.output_ids.tolist())
        answer, good = judge(text, secret)
        best = max(best, good)
        arguments = json.dumps({"said": text})
        await asyncio.to_thread(capture.tool, "judge", arguments, answer, call_id=call, status="ok")
        if answer == "Right!" or said.finish_reason != "stop":
            break
        prompt = [*prompt, *said.output_ids.tolist(), *chat.go_on(answer)]
    await asyncio.to_thread(capture.score, best)


async def work(given: argparse.Namespace) -> None:
    """Groups of executions of one task, all at once; each is captured from its start to its score."""
    chat, limit = Chat(given.model), aiohttp.ClientTimeout(total=GENERATE_S)
    with headrace.captures(given.run, log=given.log) as captures:
        async with aiohttp.ClientSession(timeout=limit) as http, asyncio.TaskGroup() as tasks:

            async def one(group: str, index: int, secret: int) -> None:
                name, task = f"{group}.{index}", {"id": group, "prompt": ASKED, "secret": secret}
                options = {"group": group, "task": task, "size": given.size, "index": index}
                async with await asyncio.to_thread(captures.open, name, **options) as capture:
                    await rollout(http, given, chat, capture, secret)

            draw = random.Random(given.seed)
            for number in range(given.groups):
                secret = draw.randint(1, 100)
                for index in range(given.size):
                    tasks.create_task(one(f"guess-{given.seed}-{number}", index, secret))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's folder, made where there is none")
    parser.add_argument("--engine", required=True, help="SGLang, http://127.0.0.1:30000")
    parser.add_argument("--model", type=Path, required=True, help="the policy's Hugging Face folder")
    parser.add_argument("--log", default="", help="a log URL (default: SQLite in the run's folder)")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8, help="executions of a group")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens-max", type=int, default=64, help="of one answer")
    parser.add_argument("--context-tokens", type=int, default=32768, help="prompt and answer together")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(work(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
