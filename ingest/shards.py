"""The shards of a rebuild: what one task does, on whatever machine it runs.

    copy_lane      one lane of the log -> its rows in the event tables
    derive_groups  some groups -> their rows in the tables of a derived set
    digest_lane    the rows of one partition in one event table -> their digest
    digest_groups  some groups -> the digests of their rows in each table of a derived set

Each may be run again after it failed half way: what it wrote is not written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.derived import OUTPUTS, DerivedSet
from ingest.deriving import Deriving
from ingest.materialise import digest_of_group, scores_before
from ingest.open_groups import STATE_TOPICS
from ingest.tables import copy_all
from lake.blobs import Blobs
from lake.digest import OrderedDigest
from lake.log import Log, LogCorrupt, open_log
from lake.models import Models, Params
from lake.portions import portions
from lake.rows import FIRST_SCHEMA
from lake.scan import in_offset_order
from lake.store import Store
from lake.table import Table, filesystem
from lake.tables import SCHEMAS

BATCH_BYTES = 64 << 20
"""Of records behind one commit of a rebuild: larger files than a live worker's."""
GROUPS_AT_ONCE, TOKENS_AT_ONCE = 64, 2_000_000
"""Of one shard, at most (a larger group is one alone): 20 MB of tokens, and a second of work."""
DERIVATIONS_KEY = ("group_id",)


class LaneShard(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a log, to be copied into a lake."""

    log_url: str
    blobs: str
    lake: str
    lane: int
    ends: dict[str, int]  # topic -> the least that the log holds of it: else it is another log

    def __str__(self) -> str:
        return f"lane {self.lane}"


class GroupsShard(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of a derived set."""

    lake: str
    params: Params
    groups: tuple[str, ...]
    tables: tuple[str, ...] = OUTPUTS
    gated: bool = False  # to derive: groups that violate an audit are held back (else written all the same)

    def __str__(self) -> str:
        return f"{self.params.set_name}: groups {self.groups[0]} to {self.groups[-1]}"


class DigestShard(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a partition below an offset, in an event table or in `dead_letters`."""

    lake: str
    table: str
    topic: str
    partition: int
    end: int

    def __str__(self) -> str:
        return f"{self.table}, {self.topic}/{self.partition}"


def copy_lane(shard: LaneShard) -> dict[str, int]:
    """Copy a lane up to where its log ends; the rows of each topic that the lake then has of it."""
    path = Path(shard.log_url.partition("?")[0].removeprefix("sqlite://"))
    if shard.log_url.startswith("sqlite:") and not path.is_file():
        raise LogCorrupt(f"log {path} is not on this machine; an SQLite log is rebuilt where it lies")
    log = open_log(shard.log_url, Blobs(shard.blobs))
    try:
        _check_ends(log, shard)
        tables = copy_all(log, Store(shard.lake), lanes=[shard.lane], batch_bytes=BATCH_BYTES)
        return {topic: end for (topic, _), end in tables.positions().items()}
    finally:
        log.close()


def _check_ends(log: Log, shard: LaneShard) -> None:
    for topic, end in shard.ends.items():
        found = log.end_offsets(topic)[shard.lane]
        if found < end:
            raise LogCorrupt(
                f"log {shard.log_url}: {topic}/{shard.lane} ends at {found}, the lake has read it to {end}; "
                "this is another log, or it lost records: `headrace log restore` fills it from the lake"
            )


# ------------------------------------------------------------------------------------- deriving
def tokens_by_group(calls: Table) -> dict[str, int]:
    """The tokens of each group's calls: what deriving it takes in memory."""
    found: dict[str, int] = {}
    for rows in _files(calls, ["group_id", "n_context", "n_output"]):
        lengths = [pc.fill_null(rows[name].cast(pa.int64()), 0) for name in ("n_context", "n_output")]
        tokens = pc.add(*lengths)
        sums = pa.table({"g": rows["group_id"], "n": tokens}).group_by("g").aggregate([("n", "sum")])
        for group, n in zip(sums["g"].to_pylist(), sums["n_sum"].to_pylist(), strict=True):
            found[group] = found.get(group, 0) + n
    return found


def groups_in(table: Table) -> set[str]:
    """The groups that a table has rows of."""
    return {g for rows in _files(table, ["group_id"]) for g in rows["group_id"].unique().to_pylist()}


def _files(table: Table, columns: list[str]) -> Iterator[pa.Table]:
    """These columns, a file at a time."""
    fs = filesystem(table.uri)[0]
    for path in table.files():
        with fs.open(path, "rb") as source:
            yield pq.read_table(source, columns=columns)


def shares(groups: Sequence[str], tokens: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Groups, in order of their ids, in portions of about TOKENS_AT_ONCE tokens."""
    return [
        tuple(part)
        for part in portions(sorted(groups), lambda g: tokens.get(g, 0), TOKENS_AT_ONCE, GROUPS_AT_ONCE)
    ]


@cache
def _models() -> Models:
    """Parsed once a process."""
    return Models.load()


class DerivedGroup(msgspec.Struct, frozen=True):
    """What became of a group: the digest of what a trainer reads of it, and its violating rows.

    digest      None: it was held back
    violations  the number of rows that an audit named
    """

    digest: str | None
    violations: int = 0


def derive_groups(shard: GroupsShard) -> dict[str, DerivedGroup]:
    """Derive groups, audit them and write their rows: with the scores that their derivations say, else all.

    Violating rows are kept in the set in either case.
    """
    store = Store(shard.lake)
    kept = DerivedSet(store, shard.params, shard.groups)
    events = {t: store.table(f"events/{t}", SCHEMAS[t]).read(shard.groups) for t in STATE_TOPICS}
    for group, end in kept.derivations(shard.groups).items():
        events["scores"] = scores_before(events["scores"], group, end)
    with closing(Deriving(_models(), shard.params)) as deriving:
        made = deriving.derive(events, shard.groups)
    kept.hold(made.violations)
    counts = Counter(made.violations["group_id"].to_pylist())
    sound = [g for g in shard.groups if not (shard.gated and counts[g])]
    kept.append(made.tables, sound)
    return {
        g: DerivedGroup(digest_of_group(made.tables, g) if g in sound else None, counts[g])
        for g in shard.groups
    }


# -------------------------------------------------------------------------------------- digests
def digest_lane(shard: DigestShard) -> tuple[int, str]:
    """(rows, digest) of rows in the order of their offsets; a table that is not there has no rows."""
    digest = OrderedDigest()
    table = Store(shard.lake).existing(f"events/{shard.table}")
    where: dict[str, str | int] = {"log_partition": shard.partition}
    if shard.table == "dead_letters":
        where["topic"] = shard.topic
    for rows in in_offset_order(table, where) if table is not None else ():
        below = rows.filter(pc.less(rows["log_offset"], shard.end))
        digest.add(_as_of_today(below, shard.table) if shard.table != "dead_letters" else below)
        if below.num_rows < rows.num_rows:
            break
    return digest.rows, digest.hexdigest()


ADDED = {
    "schema": pa.scalar(FIRST_SCHEMA, pa.int32()),
    "place": pa.scalar(b"", pa.binary()),
    "experts": pa.scalar("", pa.string()),
    "transport": pa.scalar("", pa.string()),
    "took_us": pa.scalar(0, pa.int64()),
    "readback": pa.scalar(None, pa.float64()),
}
"""Columns that tables gained, and what rows from before have in them."""


def _as_of_today(rows: pa.Table, topic: str) -> pa.Table:
    """Rows with every column of their table; those from before a column was added have what it meant then."""
    for name in ADDED.keys() & set(SCHEMAS[topic].names):
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(ADDED[name], rows.num_rows))
        else:
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pc.fill_null(rows[name], ADDED[name]))
    return rows.select(SCHEMAS[topic].names)


def digest_groups(shard: GroupsShard) -> dict[str, dict[str, tuple[int, str]]]:
    """table -> group -> (rows, digest) of its rows in the order of the model's key."""
    store, models = Store(shard.lake), _models()
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for name in shard.tables:
        table = store.existing(f"sets/{shard.params.set_name}/{name}")
        if table is None:
            found[name] = {}
            continue
        key = models.by_name[name].key if name in models.by_name else DERIVATIONS_KEY
        rows = table.read(shard.groups).sort_by([(column, "ascending") for column in key])
        found[name] = {group: _digest(rows, group) for group in shard.groups}
    return found


def _digest(rows: pa.Table, group: str) -> tuple[int, str]:
    own = rows.filter(pc.equal(rows["group_id"], group))
    digest = OrderedDigest()
    digest.add(own)
    return own.num_rows, digest.hexdigest()
