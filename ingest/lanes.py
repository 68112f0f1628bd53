"""Which lanes a worker owns: partition p of every group-keyed topic together is lane p.

    FixedLanes(0, of=2, partitions=4)      lanes 0 and 2 for ever (SQLite: workers of one command)
    GroupLanes(members)                    what the consumer group gives now (Kafka: workers come and go)

Whoever owns a lane owns whole groups.  The topics of one partition belong to lane 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from lake.events import TOPICS, TOPICS_BY_GROUP
from lake.log import Log, Partition


def partitions_of(lanes: Iterable[int]) -> list[Partition]:
    """The partitions of these lanes, in a fixed order."""
    owned = sorted(lanes)
    return [(t, p) for t in TOPICS for p in owned if t in TOPICS_BY_GROUP or p == 0]


class Lanes(Protocol):
    """The lanes of one worker."""

    shared: bool
    """Whether another worker may rightly take a lane over: then a refused commit means to look again."""

    @property
    def generation(self) -> int:
        """Changes whenever what is owned changes, also where a lane was lost and came back."""

    def owned(self) -> frozenset[int]:
        """What is owned now; to be asked every few seconds.  Raises LogUnavailable."""

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        """Show others how far the lake is."""

    def close(self) -> None:
        """Let others have the lanes."""


class FixedLanes:
    """Every `of`-th lane from `index` on."""

    shared = False
    generation = 0

    def __init__(self, index: int, of: int, partitions: int) -> None:
        if not 0 <= index < of:
            raise ValueError(f"worker {index} of {of}: the index is from 0 to {of - 1}")
        self._lanes = frozenset(range(index, partitions, of))

    def owned(self) -> frozenset[int]:
        return self._lanes

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is held."""


class Membership(Protocol):
    """Membership in a consumer group (`lake.kafka_members.Members`)."""

    @property
    def generation(self) -> int: ...
    def lanes(self) -> frozenset[int]: ...
    def mirror(self, positions: Mapping[Partition, int]) -> None: ...
    def close(self) -> None: ...


def has_groups(log: Log) -> bool:
    """Whether the log shares out lanes among members of a group: Kafka does."""
    return hasattr(log, "members")


class GroupLanes:
    """The lanes that a consumer group gives."""

    shared = True

    def __init__(self, members: Membership) -> None:
        self._members = members

    @property
    def generation(self) -> int:
        return self._members.generation

    def owned(self) -> frozenset[int]:
        return self._members.lanes()

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        self._members.mirror(positions)

    def close(self) -> None:
        self._members.close()
