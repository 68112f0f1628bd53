"""The configuration of a rollout: from what the command was given, or from the run that it goes on with."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ingest.rollouts.command_line import ARGUMENT_BYTES_MAX, BadCommand, CommandLine
from ingest.rollouts.commanded import lines_of, program
from ingest.rollouts.tasks import parse_task
from lake.config import Config, ConfigError, Rollout, override
from lake.engine_address import engine_key, parse_engine
from lake.layout import Run
from lake.processes import ask
from lake.sglang import CONTEXT_KEPT

CONTEXT_TOKENS = 32_768
"""Where a model's config.json does not say."""
EMBEDDED_CONTEXT_TOKENS_MAX = 8192
ENGINE_S = 10.0
BEGINS = Config(
    name="policy",
    rollout=Rollout(concurrent_executions=8, harness_timeout_s=3600.0, scorer_timeout_s=600.0),
)
"""What differs from the demo: real harnesses take their time and a machine's memory."""


class EngineAway(RuntimeError):
    """An engine that was named does not answer: which, and why."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a command was given; None or empty: not."""

    harness: str | None = None
    tasks: Path | None = None
    scorer: str | None = None
    engines: tuple[str, ...] = ()
    model: Path | None = None
    environment: tuple[str, ...] = ()
    template: Path | None = None
    home: str | None = None
    numbers: dict[str, float | int | None] = {}  # settings of `rollout` by name
    settings: tuple[str, ...] = ()


def model_info(engine: str) -> dict[str, Any]:
    """What an engine says of itself; each of its servers is asked.  Raises EngineAway, BadAddress."""
    return [_info(url, engine) for url in parse_engine(engine).servers][-1]


def _ask(url: str, path: str) -> dict[str, Any]:
    key = engine_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found = json.loads(ask(urllib.request.Request(url + path, headers=headers), ENGINE_S))
    return found if isinstance(found, dict) else {}


def _info(url: str, engine: str) -> dict[str, Any]:
    try:
        return _ask(url, "/model_info")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise EngineAway(
            f"--engine {engine}: {getattr(error, 'reason', error)}; see that it is up and reached from here"
        ) from error


def model_folder(model: Path | None, engines: Sequence[str]) -> Path:
    """The Hugging Face folder whose tokenizer and template the proxy uses.

    The one that was given, else the first engine's own, where that lies on this machine.  Raises
    ConfigError, EngineAway.
    """
    said = [model_info(url) for url in engines]
    if model is None and said and said[0].get("model_path"):
        model = Path(str(said[0]["model_path"]))
    if model is None:
        raise ConfigError(
            "--model is needed: the Hugging Face folder of the policy, for tokenizer and template"
        )
    for name in ("config.json", "tokenizer.json"):
        if not (model / name).is_file():
            raise ConfigError(f"--model {model} holds no {name}; give the Hugging Face folder of the policy")
    return model.absolute()


def _served_context(engine: str, model_tokens: int) -> int:
    """What prompt and output may have together at an engine, the least of its servers'."""
    least = model_tokens
    for url in parse_engine(engine).servers:
        try:
            said = _ask(url, "/server_info")
        except (urllib.error.URLError, OSError, ValueError):
            continue  # nobody is asked to have it: the engine itself refuses what does not fit
        tokens = said.get("context_length")
        tokens = tokens if isinstance(tokens, int) else model_tokens
        kept = CONTEXT_KEPT if "disaggregation_mode" in said else 0  # SGLang
        least = min(least, tokens - kept)
    return least


def context_tokens(folder: Path, *, embedded: bool, engines: Sequence[str] = ()) -> int:
    """What prompt and output may have together, by the model and by the engines that are named."""
    try:
        said = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'} is not JSON: {error}") from error
    found = said.get("max_position_embeddings") or said.get("text_config", {}).get("max_position_embeddings")
    tokens = found if isinstance(found, int) and found > 1 else CONTEXT_TOKENS
    tokens = min(tokens, EMBEDDED_CONTEXT_TOKENS_MAX) if embedded else tokens
    return min([tokens, *(_served_context(engine, tokens) for engine in engines)])


def _start(folder: Path, engines: Sequence[str]) -> Config:
    """The configuration for a model, before what the command was given."""
    tokens = context_tokens(folder, embedded=not engines, engines=engines)
    return msgspec.structs.replace(
        BEGINS,
        name=folder.name or "policy",
        engine=msgspec.structs.replace(BEGINS.engine, context_tokens=tokens),
        rollout=msgspec.structs.replace(BEGINS.rollout, new_tokens_max=tokens, here=os.getcwd()),
    )


def apply(start: Config, given: Given) -> Config:
    """A configuration with what was given in its place, `--set` last.  Raises ConfigError."""
    said: dict[str, Any] = {n: v for n, v in given.numbers.items() if v is not None}
    if given.harness is not None:
        said |= {"harness": "command", "command": given.harness}
    if given.scorer is not None:
        said["scorer"] = given.scorer
    if given.environment:
        said["environment"] = given.environment
    if given.engines:
        said["engines"] = given.engines
    if given.home is not None:
        said["home"] = given.home if given.home in {"own", "shared"} else str(Path(given.home).absolute())
    for name, path in (("tasks", given.tasks), ("template", given.template)):
        if path is not None:
            said[name] = str(path.absolute())
    config = msgspec.structs.replace(start, rollout=msgspec.structs.replace(start.rollout, **said))
    if given.model is not None:
        model = msgspec.structs.replace(start.model, weights=str(given.model.absolute()))
        config = msgspec.structs.replace(config, model=model)
    return override(config, given.settings)


def begin(given: Given) -> Config:
    """The configuration of a new rollout, or (without a harness) of a proxy that serves alone.

    Raises ConfigError, EngineAway.
    """
    folder = model_folder(given.model, given.engines)
    config = apply(_start(folder, given.engines), msgspec.structs.replace(given, model=folder))
    calls = min(config.engine.concurrent_calls, 2 * config.rollout.concurrent_executions)
    return msgspec.structs.replace(
        config, engine=msgspec.structs.replace(config.engine, concurrent_calls=calls)
    )


def go_on(run: Run, given: Given) -> Config:
    """The configuration of a run that is there: what is given again must be as it was, but for engines.

    Raises ConfigError with the settings that differ.
    """
    config = run.config()
    if given.engines:
        config = apply(config, Given(engines=given.engines))
    again = apply(config, given)
    if again.log and config.log.startswith(again.log):  # a broker's topics got a name of their own
        again = msgspec.structs.replace(again, log=config.log)
    before, after = msgspec.to_builtins(config), msgspec.to_builtins(again)
    differing = [
        f"{name}.{key}" if isinstance(old, dict) else name
        for name, old in before.items()
        for key in (old if isinstance(old, dict) else [name])
        if (old[key] != after[name][key] if isinstance(old, dict) else old != after[name])
    ]
    if differing:
        raise ConfigError(
            f"{run.path} has its settings already, and {', '.join(differing)} would differ; leave that out, "
            "or give another folder"
        )
    return config


def check(config: Config, tasks: Sequence[str]) -> list[str]:
    """Refuse what no execution could be started with; sentences about what is probably not meant.

    Raises BadCommand.
    """
    rollout = config.rollout
    command, scorer = lines_of(rollout)
    notes: list[str] = []
    for line, setting in ((command, "--harness"), (scorer, "--scorer")):
        if line is None:
            continue
        _check_program(line, setting, rollout)
        notes += _relative(line, setting, rollout.here)
        notes += _like_an_option(line, setting, tasks)
        if line.uses("prompt"):
            for text in tasks:
                task = parse_task(text)
                size = len(task.prompt.encode()) + max(len(w.encode()) for w in line.words)
                if size > ARGUMENT_BYTES_MAX:
                    raise BadCommand(
                        f"the prompt of task {task.id} is too long for an argument ({size} bytes, "
                        f"{ARGUMENT_BYTES_MAX} at most); write {{prompt_file}} or {{task}} in {setting}"
                    )
    return notes


def _check_program(line: CommandLine, setting: str, rollout: Rollout) -> None:
    word = line.words[0]
    if "{" in word:
        return
    path = program(word, rollout.here, dict(os.environ))
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise BadCommand(f"{setting}: there is no program {word!r}; give its path, or install it")


def _like_an_option(line: CommandLine, setting: str, tasks: Sequence[str]) -> list[str]:
    """A prompt that a program would take for an option: only its own `--` can say that it is none."""
    if "{prompt}" not in line.words or "--" in line.words:
        return []
    first = next((t for t in map(parse_task, tasks) if t.prompt.startswith("-")), None)
    if first is None:
        return []
    return [
        f"{setting}: the prompt of task {first.id} begins with -, as an option does; where the program knows "
        "it, write -- before {prompt}"
    ]


def _relative(line: CommandLine, setting: str, here: str) -> list[str]:
    """Words that name a file of the present folder: a harness starts in a folder of its own."""
    return [
        f"{setting}: {word} is a file here, but every execution has a folder of its own; for this one write "
        f"{{here}}/{word}"
        for word in line.words[1:]
        if "{" not in word and not os.path.isabs(word) and os.path.isfile(os.path.join(here, word))
    ]
