"""Settings: read, overridden, refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lake import config as configs
from lake.config import Config, ConfigError


def test_the_shipped_demo_is_the_default_but_for_calls_that_are_given_up() -> None:
    assert configs.read("demo") == configs.override(Config(), ["proxy.rejoin_s=0"])


def test_a_file_is_read_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("steps = 6\n[rollout]\nmu = 2\n")
    assert configs.read(str(path)).rollout.mu == 2
    path.write_text("stepz = 6\n")
    with pytest.raises(ConfigError, match="stepz"):
        configs.read(str(path))
    path.write_text("steps = = 6\n")
    with pytest.raises(ConfigError, match=r"c\.toml"):
        configs.read(str(path))


def test_a_name_that_is_not_there_says_what_is() -> None:
    with pytest.raises(ConfigError, match="give a TOML file or one of demo"):
        configs.read("nothing")


def test_a_folder_of_the_name_hides_no_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert configs.read("demo").name == "demo"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("steps=0", "steps is 0"),
        ("steps=7", "a multiple of rollout.mu = 3"),
        ("phi=0.3", "a whole number is needed"),
        ("phi=-1", "at least 0"),
        ("group_size=1", "at least 2"),
        ("j_max=-1", "0 .no cap. or more"),
        ("advantage=median", "advantage"),
        ("form=ppo", "form"),
        ("steps=many", "steps"),
        ("clip_low=1", "clip_low"),
        ("nothing=1", "no section has it"),
        ("learning_rate.x=1", "no section"),
        ("rollout.nothing=1", "unknown"),
        ("seed=3=4", "seed"),
        ("j_max", "name=value"),
        ("threads=2", "trainer.threads, engine.threads"),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configs.override(Config(), [setting])


def test_settings_find_their_section() -> None:
    config = configs.override(Config(), ["j_max=1", "admission.seed=4", "log=kafka://h:1", "steps=6"])
    assert (config.admission.j_max, config.admission.seed, config.log, config.steps) == (
        1,
        4,
        "kafka://h:1",
        6,
    )


def test_the_resolved_configuration_reads_back() -> None:
    data = msgspec.json.encode(Config(steps=6))
    assert msgspec.json.decode(data, type=Config) == Config(steps=6)


def test_the_rate_warms_up_and_stays() -> None:
    optimizer = Config().optimizer
    assert [optimizer.rate(s) / optimizer.learning_rate for s in range(5)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 1, 1]
    )
