"""A run that publishes to real engines, for tests of trainer/publication."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lake.config import Publication
from lake.events import PolicyPublished
from lake.layout import Run
from lake.log import open_log
from lake.wire import decode
from trainer import weights
from trainer.publication import Publisher
from trainer.publication.engine import Engine
from trainer.publication.folder import Folder
from trainer.publication.group import Group
from trainer.publication.publish import Transport

BUCKET_BYTES = 60_000  # some ten buckets of a tiny model


def score_of(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    """What a backend of these weights says: log-probabilities of the ids after the first."""
    model = weights.load(folder)

    @torch.no_grad()
    def score(ids: np.ndarray) -> np.ndarray:
        tokens = torch.from_numpy(ids.astype(np.int64))
        logits = model.logits(model.forward_hidden(tokens[None, :-1])[0])
        return -torch.nn.functional.cross_entropy(logits.float(), tokens[1:], reduction="none").numpy()

    return score


class Stage:
    """A run's folder and its log; versions are numbered on from what the first engine serves."""

    def __init__(self, folder: Path, models: Sequence[Path], engines: Sequence[str]) -> None:
        self.run, self._models = Run(folder), models
        (folder / "weights").mkdir(parents=True)
        self.log = open_log(f"sqlite://{folder / 'log.db'}")
        self.engines = [Engine(url, 60.0) for url in engines]
        label = self.engines[0].version()
        self.start = int(label) if label.isdigit() else 0
        self._publishers: list[Publisher] = []

    def weights(self, version: int) -> Path:
        """The folder of a version, made where it is missing: the models take turns."""
        folder = self.run.weights(version)
        if not folder.exists():
            shutil.copytree(self._models[(version - self.start) % len(self._models)], folder)
        return folder

    def publisher(self, transport: str = "group", *, own: Transport | None = None, **settings) -> Publisher:
        if own is None and transport == "group":
            own = Group(60.0, BUCKET_BYTES)
        asked = Publication(transport=transport, timeout_s=60.0, **settings)
        urls = [e.url for e in self.engines]
        made = Publisher(self.run, asked, urls, context_tokens=2048, transport=own)
        self._publishers.append(made)
        return made

    def publish(self, publisher: Publisher, version: int, *, digest: str = "") -> None:
        folder = self.weights(version)
        digest = digest or Folder(folder).digest()

        def score(ids: np.ndarray) -> np.ndarray:
            return score_of(folder)(ids)  # not before it is asked: a folder may be unsound on purpose

        publisher.publish(
            self.log,
            version=version,
            boundary=version,
            digest=digest,
            score=score,
        )

    def published(self) -> list[PolicyPublished]:
        """What the log says, oldest first."""
        reader = self.log.reader({("policy", 0): 0})
        events = [decode(r.headers, r.value) for r in reader.poll(0.2)]
        reader.close()
        return [e for e in events if isinstance(e, PolicyPublished)]

    def publish_in_flight(
        self, publisher: Publisher, check: Callable[[int], None] = lambda _version: None
    ) -> tuple[list[int], dict[str, Any]]:
        """Three publications during one call; the versions it saw, that before them first, and its answer.

        `check(version)` after each.  One more goes before, so that what a process loads once is loaded.
        """
        last = self.start + 1
        self.publish(publisher, last)
        for _ in range(4):  # again where the machine was so slow that the call ended first
            versions = [last, last + 1, last + 2, last + 3]
            with long_call(self.engines[0]) as answer:
                for version in versions[1:]:
                    self.publish(publisher, version)
                    check(version)
                last, in_flight = versions[-1], not answer
            if in_flight:
                return versions, answer
        raise AssertionError("no call lasted for three publications")

    def put_back(self, model: Path) -> None:
        """Leave the first engine as it was found: idle, not paused, on the weights of `model`."""
        engine = self.engines[0]
        engine.post("/abort_request", {"abort_all": True})
        version = engine.version()
        engine.load(model, str(int(version) + 1 if version.isdigit() else 1), flush=False)
        engine.resume()
        until = time.monotonic() + 60
        while not engine.flush():  # of a call that ended just now an engine may know no end yet
            assert time.monotonic() < until, "the engine does not come to rest"

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()
        self.log.close()


def _until_running(engine: Engine, calls: int) -> None:
    until = time.monotonic() + 60
    while engine.get("/v1/loads")["loads"][0]["num_running_reqs"] != calls:
        assert time.monotonic() < until, f"not {calls} calls run"
        time.sleep(0.05)


@contextmanager
def long_call(engine: Engine, tokens: int = 1900) -> Iterator[dict[str, Any]]:
    """A call in flight, alone; what it answered, when it was aborted at the end of the block, is put in here.

    Raises what went wrong with it, unless the block raises.
    """
    body = {
        "input_ids": [5, 6, 7, 8],
        "sampling_params": {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True},
        "return_logprob": True,
    }
    answer: dict[str, Any] = {}
    wrong: list[Exception] = []

    def ask() -> None:
        try:
            answer.update(engine.post("/generate", body, 120.0))
        except Exception as error:
            wrong.append(error)

    _until_running(engine, 0)  # else a call of before would be taken for this one
    thread = threading.Thread(target=ask)
    thread.start()
    _until_running(engine, 1)
    try:
        yield answer
    finally:
        engine.post("/abort_request", {"abort_all": True})
        thread.join()
    if wrong:
        raise wrong[0]
