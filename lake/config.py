"""The configuration of a run: frozen, validated when it is made, read from TOML.

config = read("demo")                       a shipped one, or a path
config = override(config, ["log=kafka://127.0.0.1:9092", "rollout.mu=2"])
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from lake.engine_address import BadAddress, parse_engine
from lake.events import TRAINED_ROLES


class ConfigError(ValueError):
    """A setting that cannot be: which, its value, the bound."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""


def _need(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConfigError(sentence)


class Rollout(Section, kw_only=True, frozen=True):
    """Which work is handed out.  Q = (phi + mu) * groups_per_step unconsumed groups at a boundary."""

    harness: str = "courier"
    groups_per_step: int = 4  # B
    group_size: int = 8  # N
    phi: float = 0.5
    mu: int = 3
    concurrent_executions: int = 96
    temperature: float = 1.0
    new_tokens_max: int = 32
    harness_timeout_s: float = 120.0
    attempts_max: int = 4  # launches of one place of a group, when the run itself went away under it
    scorer_timeout_s: float = 120.0
    overall_timeout_s: float = 0.0  # harness and scorer together; 0: no bound but theirs
    waterlevel: int = 0  # of `headrace rollout`: groups handed out and not ready, at most; 0: no bound
    # --- the harness `command`: any command line (ingest.rollouts.command_line has the placeholders)
    command: str = ""
    scorer: str = ""  # its last line is the score; without one every score is missing
    tasks: str = ""  # a file of JSON lines, each with a `prompt`
    template: str = ""  # a folder that each workspace begins as a copy of
    here: str = ""  # the folder {here}, in which the command line was written
    home: str = "own"  # HOME of a harness: `own` (empty), `shared` (ours), or a folder it is a copy of
    environment: tuple[str, ...] = ()  # NAME=VALUE, or NAME to pass ours on
    exit_codes: tuple[int, ...] = (0,)  # of a harness that came to its end; any other is a crash
    output_bytes_max: int = 16 << 20  # kept of what one execution prints
    stop_s: float = 5.0  # from SIGTERM to SIGKILL
    engines: tuple[str, ...] = ()  # started by others (lake.engine_address); none: one of our own

    def __post_init__(self) -> None:
        _need(self.groups_per_step >= 1, f"rollout.groups_per_step is {self.groups_per_step}, at least 1")
        few = 1 if self.harness == "command" else 2  # one alone has no advantage, but may be evaluated
        _need(self.group_size >= few, f"rollout.group_size is {self.group_size}, at least {few}")
        self._check_command()
        self._check_engines()
        _need(self.mu >= 1, f"rollout.mu is {self.mu}, at least 1")
        _need(self.phi >= 0, f"rollout.phi is {self.phi}, at least 0")
        q = (self.phi + self.mu) * self.groups_per_step
        _need(q == int(q), f"(rollout.phi + rollout.mu) * groups_per_step is {q}, a whole number is needed")
        _need(self.temperature > 0, f"rollout.temperature is {self.temperature}, above 0 is needed")
        _need(self.concurrent_executions >= 1, "rollout.concurrent_executions: at least 1 is needed")
        _need(self.new_tokens_max >= 1, f"rollout.new_tokens_max is {self.new_tokens_max}, at least 1")
        _need(
            self.waterlevel >= 0, f"rollout.waterlevel is {self.waterlevel}, 0 (no bound) or more is needed"
        )
        for name in ("harness_timeout_s", "scorer_timeout_s"):
            _need(getattr(self, name) > 0, f"rollout.{name} is {getattr(self, name)}, above 0 is needed")
        _need(
            self.overall_timeout_s >= 0,
            f"rollout.overall_timeout_s is {self.overall_timeout_s}, 0 (none) or more is needed",
        )

    def _check_engines(self) -> None:
        try:
            urls = [parse_engine(said).url for said in self.engines]
        except BadAddress as error:
            raise ConfigError(f"rollout.engines: {error}") from error
        twice = sorted({url for url in urls if urls.count(url) > 1})
        _need(not twice, f"rollout.engines names {', '.join(twice)} twice; each once is needed")

    def _check_command(self) -> None:
        by_command = self.harness == "command"
        _need(
            not by_command or bool(self.command.strip()),
            'rollout.harness is "command" and rollout.command is empty; give the command line, for example '
            '"claude -p {prompt}"',
        )
        _need(
            by_command or not (self.command or self.scorer),
            f'rollout.command and rollout.scorer are for rollout.harness = "command", it is "{self.harness}"',
        )
        _need(bool(self.exit_codes), "rollout.exit_codes is empty; at least one is needed, usually 0")
        _need(
            4096 <= self.output_bytes_max <= 1 << 40,
            f"rollout.output_bytes_max is {self.output_bytes_max}, 4096 or more is needed",
        )
        _need(0 <= self.stop_s <= 15, f"rollout.stop_s is {self.stop_s}, 0 to 15 seconds is needed")


class Admission(Section, kw_only=True, frozen=True):
    """Which paths of an execution are trained on.  `j_max = 0` means no cap."""

    j_max: int = 5
    seed: int = 0
    advantage: Literal["centred", "standardised"] = "centred"
    roles: tuple[str, ...] = TRAINED_ROLES  # whose leaves may be admitted, the first class first

    def __post_init__(self) -> None:
        _need(self.j_max >= 0, f"admission.j_max is {self.j_max}, 0 (no cap) or more is needed")
        _need(
            bool(self.roles) and len({*self.roles} & {*TRAINED_ROLES}) == len(self.roles),
            f"admission.roles is {', '.join(self.roles) or 'empty'}; some of {', '.join(TRAINED_ROLES)} are "
            "needed, each once",
        )


class Objective(Section, kw_only=True, frozen=True):
    """The loss (design note objective.md): `token` or `gspo`, sequence clip, cap of the weights."""

    form: Literal["token", "gspo"] = "token"
    old: Literal["mu", "recomputed"] = "mu"
    clip_low: float = 0.005
    clip_high: float = 0.005
    cap: float = 5.0

    def __post_init__(self) -> None:
        _need(0 <= self.clip_low < 1, f"objective.clip_low is {self.clip_low}, 0 to 1 is needed")
        _need(self.clip_high >= 0, f"objective.clip_high is {self.clip_high}, at least 0 is needed")
        _need(self.cap > 0, f"objective.cap is {self.cap}, above 0 is needed")


class Optimizer(Section, kw_only=True, frozen=True):
    """AdamW with a linear warm-up and a constant rate after it."""

    learning_rate: float = 5e-4
    warmup_steps: int = 3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    gradient_norm_max: float = 1.0

    def __post_init__(self) -> None:
        _need(self.learning_rate > 0, f"optimizer.learning_rate is {self.learning_rate}, above 0 is needed")
        _need(self.gradient_norm_max > 0, "optimizer.gradient_norm_max: above 0 is needed")

    def rate(self, step: int) -> float:
        """The learning rate of a step (from 0)."""
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))


class Trainer(Section, kw_only=True, frozen=True):
    """How a step is computed.

    `precision` is that of the forward pass: `float32`, or `bfloat16`, which rounds what an engine rounds that
    serves the weights in bfloat16, so that its log-probabilities and the trainer's agree; weights, gradients
    and optimizer are float32 in both.  Empty: the engine's (`Config.precision`).
    """

    backend: Literal["torch"] = "torch"
    precision: Literal["", "float32", "bfloat16"] = ""
    tokens_per_micro_step: int = 16384
    threads: int = 1
    checkpoints_kept: int = 3

    def __post_init__(self) -> None:
        _need(self.tokens_per_micro_step >= 1, "trainer.tokens_per_micro_step: at least 1 is needed")
        _need(self.threads >= 1, f"trainer.threads is {self.threads}, at least 1 is needed")
        _need(self.checkpoints_kept >= 2, "trainer.checkpoints_kept: at least 2 (a step may be torn)")


class Model(Section, kw_only=True, frozen=True):
    """The first policy: a Hugging Face folder, or `courier` (the tiny model, made by a warm-up)."""

    weights: str = "courier"
    warmup_steps: int = 400
    warmup_executions_per_step: int = 2
    warmup_learning_rate: float = 3e-3
    warmup_threads: int = 1  # two spin against each other where the cores are not free: 6 minutes for 45 s


class Engine(Section, kw_only=True, frozen=True):
    """Who samples.  `engine = "sglang"` is short for `engine.kind = "sglang"`.

    Of SGLang: `python` is the interpreter that has it (empty: ours, else that of infra/sglang/sglang.sh);
    `device` is `cpu` or `cuda` (empty: the GPU, where one is); `options` are further words of its server.
    """

    kind: Literal["embedded", "sglang"] = "embedded"
    concurrent_calls: int = 128
    context_tokens: int = 512
    threads: int = 1
    python: str = ""
    device: Literal["", "cpu", "cuda"] = ""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("concurrent_calls", "threads"):
            _need(getattr(self, name) >= 1, f"engine.{name} is {getattr(self, name)}, at least 1 is needed")
        _need(
            self.context_tokens >= 2, f"engine.context_tokens is {self.context_tokens}, at least 2 is needed"
        )


class Publication(Section, kw_only=True, frozen=True):
    """How new weights reach the engines.

    `transport`: `disk` (they read the published folder), `group` (a process group, gloo or NCCL), `mooncake`
    (Mooncake's Transfer Engine over TCP).  `pause`: what calls in flight do meanwhile: `retract` computes
    their prefix anew under the new weights, `in_place` keeps what was computed under the old.  The engine's
    log-probabilities of a probe are read back and must lie within `tolerance` (nats) of the trainer's, on
    average (0: unasked).
    `store` is a folder or fsspec URL that published versions go to besides (empty: only the run's folder).
    """

    transport: Literal["disk", "group", "mooncake"] = "disk"
    pause: Literal["retract", "in_place"] = "retract"
    tolerance: float = 0.1
    timeout_s: float = 120.0
    store: str = ""

    def __post_init__(self) -> None:
        _need(
            self.tolerance >= 0, f"publication.tolerance is {self.tolerance}, 0 (unchecked) or more is needed"
        )
        _need(self.timeout_s > 0, f"publication.timeout_s is {self.timeout_s}, above 0 is needed")


class Proxy(Section, kw_only=True, frozen=True):
    """How requests are read and answered; what is empty is found out.

    `chat_template` is a file, used in place of the model's own; `parser` the form of tool calls (`hermes`,
    `qwen3-coder`, ...: ingest.proxy.parsing), by the template where it is not said; `role_rules` a file
    of rules that come before the shipped ones (ingest.proxy.roles).  A call whose client hung up runs on for
    `rejoin_s`; one that an engine ended too early is gone on from (`continue_aborted`) or sampled anew.
    States of executions are kept up to `state_mb`, and are read from the log again beyond that.
    `routed_experts` asks a mixture-of-experts policy which experts each token went through, and keeps them.
    """

    chat_template: str = ""
    parser: str = ""
    role_rules: str = ""
    keep_alive_s: float = 10.0
    engine_wait_s: float = 600.0
    rejoin_s: float = 20.0
    continue_aborted: bool = True
    state_mb: int = 8192
    routed_experts: bool = False

    def __post_init__(self) -> None:
        _need(0 < self.keep_alive_s <= 15, f"proxy.keep_alive_s is {self.keep_alive_s}, 0 to 15 is needed")
        _need(self.engine_wait_s > 0, f"proxy.engine_wait_s is {self.engine_wait_s}, above 0 is needed")
        _need(self.rejoin_s >= 0, f"proxy.rejoin_s is {self.rejoin_s}, 0 (abort at once) or more is needed")
        _need(self.state_mb >= 1, f"proxy.state_mb is {self.state_mb}, at least 1 is needed")


class Ingest(Section, kw_only=True, frozen=True):
    """The workers of a run: how many, and after how many silent seconds one has lost its lanes (Kafka)."""

    workers: int = 1
    session_s: float = 10.0

    def __post_init__(self) -> None:
        _need(self.workers >= 1, f"ingest.workers is {self.workers}, at least 1 is needed")
        _need(self.session_s > 0, f"ingest.session_s is {self.session_s}, above 0 is needed")


class Config(Section, kw_only=True, frozen=True):
    """A whole run.  `log` is a log URL, `lake` and `blobs` (what is too large for a record of the log) are
    paths or URLs; empty means inside the run's folder.
    """

    name: str = "demo"
    steps: int = 36
    seed: int = 0
    log: str = ""
    lake: str = ""
    blobs: str = ""
    partitions: int = 1
    commit_every_s: float = 0.5
    ingest: Ingest = Ingest()
    proxy: Proxy = Proxy()
    rollout: Rollout = Rollout()
    admission: Admission = Admission()
    objective: Objective = Objective()
    optimizer: Optimizer = Optimizer()
    trainer: Trainer = Trainer()
    model: Model = Model()
    engine: Engine = Engine()
    publication: Publication = Publication()

    def __post_init__(self) -> None:
        _need(self.steps >= 1, f"steps is {self.steps}, at least 1 is needed")
        _need(
            self.steps % self.rollout.mu == 0,
            f"steps is {self.steps}, a multiple of rollout.mu = {self.rollout.mu} is needed",
        )
        _need(self.partitions >= 1, f"partitions is {self.partitions}, at least 1 is needed")
        _need(0 < self.commit_every_s < math.inf, "commit_every_s: above 0 is needed")

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """The trainer's; where it is not said the engine's: float32 of the embedded one, SGLang's dtype.

        float16 is not imitated: the trainer computes in float32 then.
        """
        served = "float32" if self.engine.kind == "embedded" else self.engine.dtype
        return self.trainer.precision or ("bfloat16" if served == "bfloat16" else "float32")


def parse(data: dict[str, Any]) -> Config:
    """A Config from plain data.  Raises ConfigError for unknown names, wrong types, values out of bounds."""
    if isinstance(data.get("engine"), str):
        data = data | {"engine": {"kind": data["engine"]}}
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def read(name_or_path: str) -> Config:
    """A shipped configuration by name (`demo`), or a TOML file.  Raises ConfigError."""
    path = Path(name_or_path)
    if not path.suffix and not path.is_file():
        path = Path(__file__).parent / "configs" / f"{name_or_path}.toml"
    if not path.is_file():
        shipped = sorted(p.stem for p in (Path(__file__).parent / "configs").glob("*.toml"))
        raise ConfigError(
            f"no configuration {name_or_path!r}: give a TOML file or one of {', '.join(shipped)}"
        )
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(data)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def override(config: Config, settings: Sequence[str]) -> Config:
    """The configuration with `name=value` settings; `j_max` stands for `admission.j_max` and so on.

    Raises ConfigError for a name that is unknown or stands in two sections.
    """
    data = msgspec.to_builtins(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting!r}: write name=value, for example j_max=3")
        *sections, leaf = name.strip().split(".")
        if not sections and leaf not in data:
            found = [s for s, v in data.items() if isinstance(v, dict) and leaf in v]
            if len(found) != 1:
                places = ", ".join(f"{s}.{leaf}" for s in found) or "no section"
                raise ConfigError(f"--set {name}: {places} has it; write section.name=value")
            sections = found
        at = data
        for section in sections:
            at = at.get(section)
            if not isinstance(at, dict):
                raise ConfigError(f"--set {name}: there is no section {section!r}")
        if leaf not in at:
            raise ConfigError(f"--set {name}: unknown; known here: {', '.join(at)}")
        if at is data and leaf == "engine":
            at, leaf = at["engine"], "kind"
        value = _value(text.strip())
        listed = isinstance(at[leaf], list | tuple) and isinstance(value, str)
        at[leaf] = [part.strip() for part in value.split(",")] if listed else value
    return parse(data)
