"""The protocol of a publication, whatever the transport."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch

from lake import failure
from lake.config import Publication
from lake.events import PolicyPublished
from lake.layout import Run
from lake.log import Log, now_us
from trainer.publication import readback
from trainer.publication.disk import Disk
from trainer.publication.engine import Engine, PublishError
from trainer.publication.folder import Folder
from trainer.publication.group import Group
from trainer.publication.mooncake import Mooncake
from trainer.publication.note import Note
from trainer.publication.store import put

Score = Callable[[np.ndarray], np.ndarray]
"""Log-probabilities (n - 1,) of a prompt's ids after the first, under the trainer's own weights."""

A = TypeVar("A")
B = TypeVar("B")


class Transport(Protocol):
    """How the bytes get to an engine that is paused."""

    name: str

    def join(self, engine: Engine) -> None:
        """Get ready; the engine serves on.  Raises PublishError."""

    def send(self, engine: Engine, weights: Folder, version: int, *, flush: bool) -> None:
        """Have it serve them under this version.  Raises PublishError: it may then hold mixed weights."""

    def close(self) -> None:
        """The end."""


def make_transport(settings: Publication) -> Transport:
    """The transport that the settings name."""
    if settings.transport == "mooncake":
        return Mooncake()
    return Group(settings.timeout_s) if settings.transport == "group" else Disk()


@dataclass
class Target:
    """One engine during a publication."""

    engine: Engine
    serves: str  # the label of what it serves
    old: Path | None  # the folder of that, where there is one: the way back
    dtype: torch.dtype
    theirs: bool  # paused by somebody else: it stays so
    torn: bool  # holds mixed weights, since an update that broke off
    flush: bool  # whether held prefixes may go together with the old weights
    sent: bool = False  # something was sent, so the old weights may be gone
    before: dict[str, str] = field(default_factory=dict)  # checksums of what it served

    @property
    def url(self) -> str:
        return self.engine.url


def at_once(items: Sequence[A], act: Callable[[A], B]) -> list[B]:
    """`act` on all in threads.  Raises the first error, once all have come to an end."""
    if not items:
        return []
    with ThreadPoolExecutor(len(items)) as pool:
        futures = [pool.submit(act, item) for item in items]
    return [future.result() for future in futures]


class Publisher:
    """Publishes the versions of one run to its engines; groups and the like live as long as it does.

    - A version that the log names was served by every engine, and its read-back was within the bound.
    - `publish` raises PublishError, which says what each engine serves; it may then be called again.
    - Not for several threads.
    """

    def __init__(
        self,
        run: Run,
        settings: Publication,
        engines: Sequence[str],
        *,
        context_tokens: int,
        transport: Transport | None = None,
    ) -> None:
        self._run, self._settings, self._context = run, settings, context_tokens
        self._engines = [Engine(url, settings.timeout_s) for url in engines]
        self._transport = transport or make_transport(settings)
        self._note = Note(run.path / "publishing.json")
        self._sums: dict[tuple[Path, torch.dtype], dict[str, str]] = {}

    def publish(self, log: Log, *, version: int, boundary: int, digest: str, score: Score) -> None:
        """The engines first, then the log.  Raises PublishError, having told the log nothing."""
        folder = Folder(self._run.weights(version))
        folder.check(digest)
        if self._settings.store:
            put(self._settings.store, folder.path, version=version, digest=digest)
        began = time.monotonic()
        targets = at_once(self._engines, self._look)
        todo = [t for t in targets if t.torn or t.serves != str(version)]
        for target in todo:
            if target.old is not None:
                folder.check_like(Folder(target.old))
        if todo:
            at_once(todo, lambda t: self._get_ready(t, folder))
            self._replace(todo, folder, version)
        self._continue(targets)
        took_us = int(1e6 * (time.monotonic() - began))
        worst = self._read_back(targets, version, score)
        failure.reach("trainer.during-publication")
        log.append(
            [
                PolicyPublished(
                    time_us=now_us(),
                    policy_version=version,
                    boundary=boundary,
                    weights=folder.path.name,
                    digest=digest,
                    transport=self._transport.name,
                    took_us=took_us,
                    readback=worst,
                )
            ]
        )

    # --------------------------------------------------------------------------------------- the phases
    def _look(self, engine: Engine) -> Target:
        """What an engine serves and how it stands; it may just be starting."""
        info = engine.wait()
        serves = str(info["weight_version"])
        # what came by a group has no path: `model_path` is then of something before
        old = self._run.weights(int(serves)) if serves.isdigit() else Path(str(info["model_path"]))
        theirs = engine.url not in self._note.paused and engine.paused()
        return Target(
            engine,
            serves,
            old if old.is_dir() else None,
            dtype=getattr(torch, engine.traits().dtype),
            theirs=theirs,
            torn=engine.url in self._note.torn,
            # SGLang answers 400 to a flush while calls stand still on what they computed, after the update
            flush=self._settings.pause == "retract" and not theirs,
        )

    def _get_ready(self, target: Target, folder: Folder) -> None:
        """What can be done, and can fail, while the engine still computes."""
        self._transport.join(target.engine)
        if not self._settings.tolerance or target.torn or target.old is None:
            return
        if target.engine.traits().plain:
            target.before = target.engine.checksums()
        if target.before:
            self._sums_of(target.old, target.dtype)
            self._sums_of(folder.path, target.dtype)

    def _sums_of(self, path: Path, dtype: torch.dtype) -> dict[str, str]:
        """The sums of a version's tensors; those of the last two versions are kept."""
        if (path, dtype) not in self._sums:
            self._sums[path, dtype] = Folder(path).sums(dtype)
        return self._sums[path, dtype]

    def _replace(self, todo: list[Target], folder: Folder, version: int) -> None:
        """Everybody holds the new version, checked, and nobody computes; or PublishError, and the old."""
        ours = [t for t in todo if not t.theirs]
        self._note.pausing([t.url for t in ours])
        try:
            at_once(ours, lambda t: t.engine.pause(self._settings.pause))
            failure.reach("trainer.while-paused")
            self._note.sending([t.url for t in todo])
            at_once(todo, lambda t: self._send(t, folder, version))
            at_once(todo, lambda t: self._check(t, folder, version))
        except PublishError as error:
            raise PublishError(f"{error}; {self._take_back(todo)}") from error
        self._note.whole([t.url for t in todo])
        self._sums = {k: v for k, v in self._sums.items() if k[0] == folder.path}

    def _send(self, target: Target, folder: Folder, version: int) -> None:
        target.sent = True
        if target.torn:  # whole, whatever it holds now
            target.engine.load(folder.path, str(version), flush=target.flush)
        else:
            self._transport.send(target.engine, folder, version, flush=target.flush)
        if not target.flush:
            target.engine.flush()  # held prefixes of the old weights go, where no call stands on them

    def _check(self, target: Target, folder: Folder, version: int) -> None:
        said = target.engine.version()
        if said != str(version):
            raise PublishError(f"engine {target.url} says that it serves {said}, {version} was sent")
        if target.before and target.old is not None:
            old, new = self._sums_of(target.old, target.dtype), self._sums_of(folder.path, target.dtype)
            after = target.engine.checksums()
            readback.check_tensors(target.url, old=old, new=new, before=target.before, after=after)

    def _continue(self, targets: list[Target]) -> None:
        """Whom we paused, now or before we were killed, computes again."""
        paused = [t for t in targets if t.url in self._note.paused and t.url not in self._note.torn]
        at_once(paused, lambda t: t.engine.resume())
        self._note.continued([t.url for t in paused])

    def _read_back(self, targets: list[Target], version: int, score: Score) -> float | None:
        """The largest difference over engines that compute; None where none does, or nobody asks."""
        asked = [t for t in targets if not t.theirs]
        if not self._settings.tolerance or not asked:
            return None
        said = json.loads((self._run.weights(version) / "config.json").read_text())
        vocab_size = said.get("vocab_size") or said["text_config"]["vocab_size"]
        prompt, count = readback.probe(vocab_size, self._context)
        found = []
        for ids, theirs in at_once(asked, lambda t: t.engine.sample(prompt.tolist(), count)):
            ours = score(np.concatenate([prompt, ids]))[len(prompt) - 1 :]
            found.append(readback.difference(theirs, np.asarray(ours, np.float64)))
        largest = max(d.largest for d in found)
        worst = max(d.mean for d in found)
        if worst <= self._settings.tolerance:
            return largest
        wrong = next(t for t, d in zip(asked, found, strict=True) if d.mean == worst)
        self._note.sending([wrong.url])  # whatever its label says, it is to be loaded whole
        sent = [t for t in asked if t.sent]
        self._note.pausing([t.url for t in sent])
        at_once(sent, lambda t: t.engine.pause(self._settings.pause))
        raise PublishError(
            f"engine {wrong.url} is {worst:.4g} away from the trainer's log-probabilities of the probe in "
            f"version {version}, on average; publication.tolerance is {self._settings.tolerance:g}; "
            f"{self._take_back(sent)}"
        )

    # ------------------------------------------------------------------------------------- taking it back
    def _take_back(self, targets: list[Target]) -> str:
        """The old weights again, from their folder; who cannot be brought back stays paused.  In words."""
        return "; ".join(at_once(targets, self._take_back_one)) or "nothing was sent to it now"

    def _take_back_one(self, target: Target) -> str:
        engine = target.engine
        try:
            if (target.sent or target.torn) and target.old is None:
                raise PublishError(f"no folder of version {target.serves} is here")
            if target.old is not None and (target.sent or target.torn):
                engine.load(target.old, target.serves, flush=target.flush)
            self._note.whole([engine.url])
            if engine.url in self._note.paused:
                engine.resume()
                self._note.continued([engine.url])
        except PublishError as error:
            return (
                f"engine {engine.url} is not to be used, since nobody knows what it holds: it stays paused, "
                f"and the next publication loads it whole ({error})"
            )
        return f"engine {engine.url} serves version {target.serves} again"

    def close(self) -> None:
        self._transport.close()
