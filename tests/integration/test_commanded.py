"""The harness `command` between the real executor, proxy and log: harness and scorer are real programs.

Only the engine is scripted.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer

from ingest.rollouts.executing import Executor
from ingest.rollouts.harnesses import HarnessError, ProxyLost, Setting, make_harness
from ingest.rollouts.launching import Launch
from lake.config import ConfigError, Rollout
from lake.log import open_log
from tests.support.running_proxy import SECRET, running_proxy
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder

HARNESS = Path(__file__).parents[1] / "support" / "small_harness.py"
ODD = 'He said "it\'s {prompt} {{x}} ${HOME}"; exit 1\n\n\ttail \\ \u2028 \u4f60 \U0001f600 calls=2'
SCORER = f"""{sys.executable} -c "print('scoring'); print(open('answer.txt').read())" """


class World:
    """One executor for launches of one task each."""

    def __init__(self, executor: Executor, workspaces: Path) -> None:
        self.executor, self.workspaces, self.number = executor, workspaces, 0

    async def execute(self, prompt: str, **task: object):
        """Finished, scored, and the execution's folder."""
        group, self.number = f"g-{self.number}", self.number + 1
        launch = Launch(0, 0, group, 0, 0, json.dumps({"prompt": prompt, **task}))
        finished, scored = await self.executor.execute(launch)
        return finished, scored, self.workspaces / f"{group}.0"


@pytest.fixture
def world(tmp_path):
    model = write_model_folder(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    @asynccontextmanager
    async def make(away: bool = False, **settings):
        rollout = Rollout(
            **{
                "harness": "command", "group_size": 1, "stop_s": 0.3, "scorer": SCORER,
                "command": f"{sys.executable} {HARNESS} {{prompt}}",
            } | settings
        )  # fmt: skip
        log = open_log(f"sqlite://{tmp_path}/log.db")
        async with (
            ScriptedEngine(tokenizer, lambda _: Say("Hello.")) as engine,
            running_proxy(log, model, engine.url) as proxy,
        ):
            setting = Setting(
                seed=0, rollout=rollout, http=proxy.session, model="m", workspaces=tmp_path / "workspaces"
            )
            url = "http://127.0.0.1:9" if away else proxy.url
            executor = Executor(
                harness=make_harness("command", setting),
                http=proxy.session,
                proxy=url,
                secret=SECRET,
                rollout=rollout,
            )
            yield World(executor, tmp_path / "workspaces")
        log.close()

    return make


async def test_a_harness_is_run_scored_and_kept(world):
    async with world() as w:
        finished, scored, folder = await w.execute(ODD, files={"a/b.txt": "kept"}, answer=42)
    assert (finished.status, finished.calls, finished.detail) == ("completed", 2, "")
    assert (scored.assessment, scored.value, scored.evaluator) == ("scored", 5.0, "scorer")
    assert (folder / "work/prompt.txt").read_text(encoding="utf-8") == ODD
    assert (folder / "prompt.txt").read_text(encoding="utf-8") == ODD
    assert json.loads((folder / "task.json").read_text())["answer"] == 42
    assert (folder / "work/a/b.txt").read_text() == "kept"
    assert (folder / "output.log").read_text() == "the last line\n"
    assert (folder / "score.out").read_text() == "scoring\n5\n"


async def test_zero_missing_and_partial_are_kept_apart(world):
    async with world(scorer="sh -c 'echo 0'") as w:
        _, scored, _ = await w.execute("calls=1")
        assert (scored.assessment, scored.value) == ("scored", 0.0)
        crashed, scored, _ = await w.execute("calls=1 exit=3")
    assert (crashed.status, crashed.calls) == ("crashed", 1)
    assert "it ended with status 3; it last said: the last line" in crashed.detail
    assert (scored.assessment, scored.value, scored.detail) == (
        "missing", None, "not assessed: the harness crashed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ("", "unscored: the run has no scorer"),
        ("sh -c 'echo 1; exit 2'", "ScorerFailed: the scorer ended with status 2; it last said: 1"),
        ("sh -c 'echo 1; echo oops >&2; kill -9 $$'", "the scorer was ended by SIGKILL; it last said: oops"),
        ("true", "NoScore: the scorer printed nothing"),
        ("sh -c 'echo 1; echo done'", "NoScore: the scorer's last line is 'done'"),
        ("/nowhere/scorer", "could not be started"),
    ],
)
async def test_a_scorer_that_gives_no_score_leaves_it_missing(world, scorer, said):
    async with world(scorer=scorer) as w:
        finished, scored, _ = await w.execute("calls=0")
    assert (finished.status, finished.calls) == ("completed", 0)  # exit 0 without a call: it came to its end
    assert (scored.assessment, scored.value) == ("missing", None)
    assert said in scored.detail


async def test_a_harness_that_hangs_is_scored_as_it_stands(world):
    scorer = """sh -c 'echo $HEADRACE_STATUS; cat answer.txt'"""
    async with world(harness_timeout_s=8.0, scorer=scorer) as w:
        finished, scored, folder = await w.execute("calls=1 daemon hang")
    assert (finished.status, finished.calls) == ("harness_timeout", 1)
    assert finished.detail == "stopped after rollout.harness_timeout_s = 8 s"
    assert (scored.assessment, scored.value) == ("partial", 3.0)
    assert (folder / "score.out").read_text() == "harness_timeout\n3"
    assert not psutil.pid_exists(int((folder / "work/daemon.pid").read_text()))


async def test_the_overall_budget_ends_harness_and_scorer_with_a_missing_score(world):
    async with world(overall_timeout_s=6.0) as w:
        finished, scored, _ = await w.execute("calls=1 hang")
        assert (finished.status, finished.calls) == ("overall_timeout", 1)
        assert finished.detail == "stopped after rollout.overall_timeout_s = 6 s"
        assert (scored.assessment, scored.detail) == ("missing", "not assessed: the harness overall_timeout")
    async with world(overall_timeout_s=7.0, scorer="sh -c 'echo 1; sleep 60'") as w:
        w.number = 1
        finished, scored, _ = await w.execute("calls=1")
    said = "the evaluator was stopped after rollout.overall_timeout_s = 7 s"
    assert (finished.status, finished.detail) == ("overall_timeout", said)
    assert (scored.assessment, scored.detail) == ("missing", said)


async def test_a_scorer_that_hangs_is_missing_and_the_harness_completed(world):
    async with world(scorer_timeout_s=0.5, scorer="sleep 60") as w:
        finished, scored, _ = await w.execute("calls=1")
    assert finished.status == "completed"
    said = "the evaluator was stopped after rollout.scorer_timeout_s = 0.5 s"
    assert (scored.assessment, scored.detail) == ("missing", said)


async def test_exit_codes_that_are_an_end_are_the_users_to_name(world):
    async with world(exit_codes=(0, 3)) as w:
        finished, scored, _ = await w.execute("calls=1 exit=3")
        assert (finished.status, scored.assessment) == ("completed", "scored")
        finished, scored, _ = await w.execute("calls=1 exit=4")
        assert (finished.status, scored.assessment) == ("crashed", "missing")


async def test_a_crash_while_the_proxy_is_away_is_the_runs_own(world, monkeypatch):
    monkeypatch.setattr("ingest.rollouts.executing.PROXY_BACK_S", 0.1)
    async with world(away=True) as w:
        with pytest.raises(ProxyLost, match="as the harness crashed"):
            await w.execute("calls=1")
        with pytest.raises(ProxyLost, match="close"):
            await w.execute("calls=0")


async def test_megabytes_of_output_are_bounded(world):
    async with world(output_bytes_max=1 << 20) as w:
        finished, _, folder = await w.execute("calls=1 print=5000000")
    assert finished.status == "completed"
    assert sum(f.stat().st_size for f in folder.glob("output.log*")) <= 1 << 20


async def test_home_template_and_environment(world, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours")
    monkeypatch.setenv("WANTED", "passed")
    template, home, own = tmp_path / "template", tmp_path / "home", tmp_path / "of-task"
    for folder in (template, home, own):
        folder.mkdir()
        (folder / "a.txt").write_text(folder.name)
    (template / "b.txt").write_text("b")
    command = """sh -c 'cat a.txt b.txt "$HOME/a.txt"; env; pwd; test -z "$AWS_SECRET_ACCESS_KEY"'"""
    async with world(
        command=command,
        template=str(template),
        home=str(home),
        environment=("WANTED", "IT={execution}"),
        scorer="",
    ) as w:
        finished, _, folder = await w.execute("x", template=str(own))
    said = (folder / "output.log").read_text()
    assert finished.status == "completed"
    assert said.startswith("of-taskbhome")  # the task's own template lies over the run's
    assert {"WANTED=passed", f"IT={folder.name}", f"HOME={folder / 'home'}", "OPENAI_MODEL=m"} <= {
        *said.splitlines()
    }
    assert said.endswith(f"{folder / 'work'}\n")
    assert (home / "a.txt").exists()
    async with world(command="sh -c 'echo $HOME'", home="shared") as w:
        w.number = 1
        _, _, folder = await w.execute("x")
    assert (folder / "output.log").read_text() == f"{os.environ['HOME']}\n"


async def test_what_cannot_be_is_refused(world):
    for settings, said in (
        ({"command": "x {promt}"}, "promt"),
        ({"scorer": "x {api_key}"}, "api_key"),
        ({"template": "/nowhere"}, "rollout.template"),
        ({"home": "/nowhere"}, "rollout.home"),
        ({"environment": ("1=2",)}, "rollout.environment"),
    ):
        with pytest.raises(HarnessError, match=said):
            async with world(**settings):
                pass
    for bad, said in (
        ({"command": " "}, "rollout.command is empty"),
        ({"harness": "courier"}, "are for rollout.harness"),
        ({"exit_codes": ()}, "exit_codes"),
        ({"stop_s": 60.0}, "stop_s"),
        ({"output_bytes_max": 1}, "output_bytes_max"),
        ({"overall_timeout_s": -1.0}, "overall_timeout_s"),
        ({"harness_timeout_s": 0.0}, "harness_timeout_s"),
    ):
        with pytest.raises(ConfigError, match=said):
            Rollout(**{"harness": "command", "command": "x"} | bad)
    async with world() as w:  # a task that is none is a crash with a reason, whoever dispatched it
        finished, scored, _ = await w.execute("")
    assert (finished.status, scored.assessment) == ("crashed", "missing")
    assert "`prompt` is empty" in finished.detail
