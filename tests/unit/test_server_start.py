"""How a run starts SGLang: which Python, which words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lake import sglang
from lake.config import Config, ConfigError, override


def config(*settings: str) -> Config:
    return override(Config(), ["engine=sglang", "engine.device=cpu", *settings])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    return tmp_path


def test_without_any_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sglang, "INSTALLED", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"infra/sglang/sglang.sh setup.*engine\.python"):
        sglang.interpreter(config())


def test_whose_python_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sglang.interpreter(config(f"engine.python={sys.executable}")) == sys.executable
    with pytest.raises(ConfigError, match=r"engine\.python is /no/such, which is no program"):
        sglang.interpreter(config("engine.python=/no/such"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sglang, "INSTALLED", Path(sys.executable))
    assert sglang.interpreter(config()) == sys.executable
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "sglang")
    monkeypatch.setattr(sglang, "INSTALLED", tmp_path / "none")
    assert sglang.interpreter(config()) == sys.executable


def value(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_words_of_a_server(model: Path) -> None:
    words = sglang.arguments(config("context_tokens=256", "concurrent_calls=4"), model, 7, 3000)
    assert words[0] == "sglang.launch_server"
    assert value(words, "--model-path") == str(model)
    assert value(words, "--weight-version") == "7"
    assert value(words, "--max-running-requests") == "4"
    assert int(value(words, "--context-length")) == 256 + sglang.CONTEXT_KEPT
    assert int(value(words, "--max-total-tokens")) >= 4 * 256
    assert "--enable-return-routed-experts" not in words


def test_options_come_last_and_a_gpu_has_its_own_defaults(model: Path) -> None:
    settings = ("engine.device=cuda", 'engine.options=["--tp-size", "8"]', "routed_experts=true")
    words = sglang.arguments(config(*settings), model, 0, 3000)
    assert words[-2:] == ("--tp-size", "8")
    assert {"--device", "--attention-backend", "--max-total-tokens"}.isdisjoint(words)
    assert "--enable-return-routed-experts" in words
    assert "SGLANG_USE_CPU_ENGINE" not in sglang.environment(config(*settings), model)


def test_the_whole_context_of_a_model_can_be_used_and_no_more(model: Path) -> None:
    longer = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    assert longer not in sglang.environment(config("context_tokens=506"), model)
    assert sglang.environment(config("context_tokens=512"), model)[longer] == "1"
    with pytest.raises(ConfigError, match="context_tokens is 513, above the model's 512"):
        sglang.environment(config("context_tokens=513"), model)
