"""What every event has: topic, key, id, checks; and the words that several kinds of event share."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

TOPICS_BY_GROUP = ("calls", "tools", "executions", "scores", "groups")  # co-partitioned
TOPICS_SINGLE = ("policy", "cells")  # one partition each
TOPICS = TOPICS_BY_GROUP + TOPICS_SINGLE
ROLES = ("main", "main-summary", "sub-agent", "sub-agent-summary", "auxiliary")
TRAINED_ROLES = ROLES[:4]  # an auxiliary call is never trained
PLACE_BYTES = 16  # of a digest that stands for the messages of a call
TREE_MAX = 2**31 - 1  # of a call's id and of a depth: the id of a node is made of both
RELATIONS = ("extends", "branches", "restarts")
STATUSES = ("completed", "harness_timeout", "overall_timeout", "crashed", "lost")
ASSESSMENTS = ("scored", "partial", "missing")

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # what a column of a table holds


class EventError(ValueError):
    """An event that cannot be trusted: which, what is wrong with it, and the bound it broke."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, forbid_unknown_fields=True
):
    """What every event has: when it happened, in microseconds since 1970 (UTC).

    A field that is added has a default, and a new SCHEMA_VERSION: a reader refuses what it does not know.
    """

    TYPE: ClassVar[str]
    TOPIC: ClassVar[str]
    time_us: Int

    @property
    def key(self) -> str:
        """The group id, so that one partition holds whole groups; without one the event id.

        Two records of a compacted topic (policy, cells) with one key: the newer supersedes the older.
        """
        group: str | None = getattr(self, "group_id", None)
        return self.event_id if group is None else group

    @property
    def event_id(self) -> str:
        raise NotImplementedError

    def check(self) -> None:
        """Raise EventError where the fields contradict each other."""
        self.check_shape()
        self.check_tokens()

    def check_shape(self) -> None:
        """The part of `check` that looks at no token."""

    def check_tokens(self) -> None:
        """The part of `check` that looks at tokens; of many events at once: `lake.tables.are_sound`."""


def one_of(event: Event, name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise EventError where the field `name` has none of the allowed values."""
    if value not in allowed:
        raise EventError(f"{event.event_id}: {name} is {value!r}, not one of {', '.join(allowed)}")
