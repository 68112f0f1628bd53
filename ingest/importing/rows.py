"""What an import reads: raw calls and scores, checked row by row, each with its place in its file.

    calls     group_id, execution_id, call_id, input_ids, output_ids      needed
              role (main), output_logprobs, version, finish_reason (stop)  may be missing or null
    scores    execution_id                                                 needed
              score, status, group_id (of an execution that made no call)  may be missing or null

A row that is refused says where it stands and why; it stops nothing.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from lake.events import ASSESSMENTS, ROLES, STATUSES, are_logprobs, logprobs_to_bytes
from lake.wire import IDENTITY_CHARS_MAX

Ids = npt.NDArray[np.int32]

TOKENS_MAX = 32 << 20
"""Of one call, inputs and outputs: an event holds 256 MiB."""
NAME_CHARS_MAX = IDENTITY_CHARS_MAX // 2
INT64_MAX = 2**63 - 1
FLOAT_MAX = sys.float_info.max


class CannotImport(ValueError):
    """An import that cannot be as it was asked for: what is in the way, what to do."""


class RowRefused(ValueError):
    """A row that is no call or no score: why."""


class Place(msgspec.Struct, frozen=True):
    """A row of a file, counted from 1."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}:{self.row}"


class Refused(msgspec.Struct, frozen=True):
    """A row that was not taken: where, why, and the beginning of its bytes."""

    place: Place
    reason: str
    value: bytes = b""


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as somebody else recorded it.  The arrays may be views that the next row overwrites."""

    place: Place
    group_id: str
    execution_id: str
    call_id: int | str
    role: str
    input_ids: Ids
    output_ids: Ids
    output_logprobs: bytes | None
    version: int | None
    finish_reason: str


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended and what it is worth: a status of `execution.finished`, an assessment."""

    place: Place | None
    group_id: str | None
    execution_id: str
    status: str
    assessment: str
    value: float | None


def named(name: str, value: Any) -> str:
    """An id or name.  Raises RowRefused."""
    if value is None or value == "":
        raise RowRefused(f"{name} is missing")
    if not isinstance(value, str):
        raise RowRefused(f"{name} is {value!r}, text is needed")
    if len(value) > NAME_CHARS_MAX:
        raise RowRefused(f"{name} has {len(value)} characters, at most {NAME_CHARS_MAX}")
    return value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of integers with nulls often comes so
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        raise RowRefused(f"{name} is {value!r}; it is 0 or more, and null where it is not known")
    return value


def checked_call(
    place: Place,
    fields: dict[str, Any],
    input_ids: Ids,
    output_ids: Ids,
    logprobs: npt.ArrayLike | None,
) -> RawCall:
    """The call of a row; ids are known to be none below 0.  Raises RowRefused."""
    call_id, role, version = fields["call_id"], fields.get("role"), fields.get("version")
    if call_id is None or call_id == "":
        raise RowRefused("call_id is missing")
    if isinstance(call_id, bool) or not isinstance(call_id, int | str):
        raise RowRefused(f"call_id is {call_id!r}, an integer or text is needed")
    if isinstance(call_id, int) and not -INT64_MAX <= call_id <= INT64_MAX:
        raise RowRefused(f"call_id is {call_id}, over 64 bits")
    role = "main" if role is None else role
    if role not in ROLES:
        raise RowRefused(f"role is {role!r}, not one of {', '.join(ROLES)}")
    if len(input_ids) + len(output_ids) > TOKENS_MAX:
        raise RowRefused(f"{len(input_ids) + len(output_ids)} tokens in one call, at most {TOKENS_MAX}")
    data = None
    if logprobs is not None:
        with np.errstate(over="ignore"):  # what is too small for float32 is found below
            data = logprobs_to_bytes(logprobs)
        if len(data) != 4 * len(output_ids):
            raise RowRefused(
                f"{len(data) // 4} output_logprobs for {len(output_ids)} output_ids; one each, or none at all"
            )
        if not are_logprobs(data):
            raise RowRefused("an output_logprob is not finite or above 0")
    finish = fields.get("finish_reason")
    return RawCall(
        place=place,
        group_id=named("group_id", fields["group_id"]),
        execution_id=named("execution_id", fields["execution_id"]),
        call_id=call_id if isinstance(call_id, int) else named("call_id", call_id),
        role=role,
        input_ids=input_ids,
        output_ids=output_ids,
        output_logprobs=data,
        version=None if version is None else _whole("version", version),
        finish_reason="stop" if finish is None else named("finish_reason", finish),
    )


def checked_score(place: Place, fields: dict[str, Any]) -> Score:
    """What a row of scores says.  Raises RowRefused.

    status       the execution ended     its assessment
    (none)       completed               scored with a score, else missing
    scored       completed               scored; a score is needed
    partial      harness_timeout         partial; a score is needed
    missing      completed               missing; there is no score
    completed, overall_timeout, crashed  as it says; scored with a score, else missing
    harness_timeout                      as it says; partial with a score, else missing
    lost                                 as it says; missing: there is no score
    """
    score, status, group = fields.get("score"), fields.get("status"), fields.get("group_id")
    if status is not None and status not in (*ASSESSMENTS, *STATUSES):
        raise RowRefused(f"status is {status!r}, not one of {', '.join((*ASSESSMENTS, *STATUSES))}")
    if score is not None:
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= FLOAT_MAX:
            raise RowRefused(f"score is {score!r}; a finite number is needed, null where it is missing")
        if status in ("missing", "lost"):
            raise RowRefused(f"score is {score!r} where the status is {status}: leave one out")
    elif status in ("scored", "partial"):
        raise RowRefused(
            f"the status is {status}, and there is no score; a missing one is `missing`, never 0"
        )
    ended = {"partial": "harness_timeout"}.get(status or "", status if status in STATUSES else "completed")
    valued = "partial" if ended == "harness_timeout" else "scored"
    return Score(
        place=place,
        group_id=None if group is None else named("group_id", group),
        execution_id=named("execution_id", fields.get("execution_id")),
        status=ended or "completed",
        assessment="missing" if score is None else valued,
        value=None if score is None else float(score),
    )


def unscored(execution_id: str) -> Score:
    """Of an execution of which no row of scores speaks."""
    return Score(
        place=None,
        group_id=None,
        execution_id=execution_id,
        status="completed",
        assessment="missing",
        value=None,
    )
