"""Following topics of a log from their beginning, event by event: what every fold stands on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from lake.events import Event, EventError
from lake.log import Log, LogUnavailable, Partition, Record
from lake.wire import event_of

logger = logging.getLogger("headrace.follow")

POLL_S = 1.0
SILENT_S_MAX = 60.0
"""A log that says it has records gives one within this; a broker that changes leaders takes seconds."""


class Follower:
    """Reads the given topics, from offset 0 or from `start` on.  Order holds within a partition only.

    Records that are not `wanted` are read over.  One that does not decode is left out with a warning: the
    ingest worker keeps it in `dead_letters`.  A gap, where nothing happened, is left out silently.
    """

    def __init__(
        self,
        log: Log,
        topics: Sequence[str],
        start: Mapping[Partition, int] | None = None,
        wanted: Callable[[Record], bool] = lambda _: True,
    ) -> None:
        self._blobs, self._wanted = log.blobs, wanted
        ends = {(t, p): end for t in topics for p, end in log.end_offsets(t).items()}
        self._ends = {lane: end for lane, end in ends.items() if start is None or lane in start}
        self._reader = log.reader(dict.fromkeys(ends, 0) if start is None else start)
        self._read: list[Record] = []  # and not given out yet: where the blobs did not answer

    def poll(self, wait_s: float) -> tuple[bool, list[Event]]:
        """Whether anything was read within `wait_s`, and its events.

        Raises LogUnavailable; the next call goes on with what this one had read.
        """
        self._read = self._read or self._reader.poll(wait_s)
        events = []
        for r in self._read:
            if not self._wanted(r):
                continue
            try:
                event = event_of(r, self._blobs)
            except EventError as error:
                logger.warning("left out %s/%d at %d: %s", r.topic, r.partition, r.offset, error)
                continue
            if event is not None:
                events.append(event)
        read, self._read = bool(self._read), []
        return read, events

    def catch_up(self) -> Iterator[Event]:
        """The events up to where the log ended when this follower was made.

        Raises LogUnavailable where records that the log says it has do not come.
        """
        quiet_since = time.monotonic()
        while self._read or any(self._reader.positions()[lane] < end for lane, end in self._ends.items()):
            read, events = self.poll(POLL_S)
            yield from events
            if read:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > SILENT_S_MAX:
                raise LogUnavailable(
                    f"the log ends at {self._ends} but gave nothing after {self._reader.positions()} for "
                    f"{SILENT_S_MAX:g} s; see whether it is up"
                )

    def positions(self) -> dict[Partition, int]:
        """The next offset of each partition."""
        return self._reader.positions()

    def close(self) -> None:
        self._reader.close()


def offset_since(log: Log, lane: Partition, time_us: int) -> int:
    """The offset of a partition's first record that was appended at `time_us` or later, or its end.

    Halves what is left of the partition at each look: some thirty looks into a log of a billion records.
    """
    topic, partition = lane
    low, high = log.begin_offsets(topic)[partition], log.end_offsets(topic)[partition]
    reader = log.reader({lane: low})
    try:
        while low < high:
            middle = (low + high) // 2
            reader.seek({lane: middle})
            found = reader.poll(SILENT_S_MAX, records_max=1)
            if found and found[0].offset < high and found[0].appended_us < time_us:
                low = found[0].offset + 1
            else:
                high = middle
        return low
    finally:
        reader.close()
