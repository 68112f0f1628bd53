"""The questions that have a report: each model under `sql/reports/` answers one, and its header says which.

    -- Question: How stale was each group when it was trained on?
    -- One row a consumed group: ...          what a row is, and why
    -- Then: ...                              what to do with the answer
    -- Empty: no group has been consumed.     why there may be no row
    -- Key: group_id

Names are those of the models; `queue-age` is `queue_age`.
"""

from __future__ import annotations

import difflib
import re

import msgspec

from lake.models import Model, ModelError, Models

FOLDER = "reports"
CLOSE = 0.5  # of difflib: what a slip of the fingers leaves of a name
_HEADER = re.compile(
    r"Question: (?P<question>.+\?) (?P<row>One row.+) Then: (?P<then>.+\.) Empty: (?P<empty>.+\.)"
)


class UnknownQuestion(ValueError):
    """A name that no question has: those that are like it."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a report answers, in its author's words; each text is one line."""

    name: str
    question: str
    row: str
    then: str
    empty: str
    key: tuple[str, ...]

    @property
    def typed(self) -> str:
        """The name as people type it."""
        return self.name.replace("_", "-")


def of_model(model: Model) -> Question:
    """Raises ModelError where the header is not that of a report."""
    found = _HEADER.fullmatch(" ".join(model.header.split()))
    if found is None:
        raise ModelError(
            f"{model.folder}/{model.name}.sql: the header of a report has `-- Question: ...?`, `-- One row "
            "...`, `-- Then: ...` and `-- Empty: ...`, in this order, before its key"
        )
    return Question(name=model.name, key=model.key, **found.groupdict())


def questions(models: Models) -> list[Question]:
    """All of them, by name."""
    return [of_model(m) for _, m in sorted(models.by_name.items()) if m.folder == FOLDER]


def find(models: Models, name: str) -> Question:
    """The question of a name, written with `_` or `-`.  Raises UnknownQuestion."""
    wanted = name.strip().lower().replace("-", "_")
    model = models.by_name.get(wanted)
    if model is not None and model.folder == FOLDER:
        return of_model(model)
    there = [q.typed for q in questions(models)]
    typed = wanted.replace("_", "-")
    close = difflib.get_close_matches(typed, there, n=3, cutoff=CLOSE)
    close += [n for n in there if typed and typed in n and n not in close]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(there)}."
    raise UnknownQuestion(f"no question {name!r}; {hint} `headrace report --list` shows each with a line")
