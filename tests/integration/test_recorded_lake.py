"""A lake that was written before tables kept the wire schema: it is queried, and appended to."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow.compute as pc
import pytest

from lake.events import TOPICS
from lake.log import Record
from lake.query import open_lake
from lake.store import Store
from lake.tables import SCHEMAS, to_table
from lake.wire import SCHEMA_VERSION, encode
from tests.support.run_events import finished_group

RECORDED = Path(__file__).parents[1] / "golden" / "recorded" / "v1.tar.xz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "lake"


def test_every_model_of_an_old_lake_is_read_and_its_audits_hold(root: Path) -> None:
    lake = open_lake(root)
    for name in lake.names():
        assert lake.arrow(name).num_columns > 0, name
    assert lake.rows("select distinct schema from event_calls") == [{"schema": None}]
    assert lake.rows("select count(*) > 100 as many from calls") == [{"many": True}]
    found = lake.audit()
    assert {name: t.num_rows for name, t in found.items() if t.num_rows} == {}


def test_an_old_lake_is_appended_to_and_its_old_rows_have_no_schema(root: Path) -> None:
    store = Store(str(root))
    before = open_lake(root).rows("select count(*) as n from event_calls")[0]["n"]
    events = finished_group(900_000)
    for topic in TOPICS:
        table = store.table(f"events/{topic}", SCHEMAS[topic])
        mine = [e for e in events if topic == e.TOPIC]
        if not mine:
            continue
        app = f"log/{topic}/0"
        stood = table.offset(app)
        pairs = [
            (Record(topic, 0, (stood or 0) + n, e.key, *encode(e), appended_us=1), e)
            for n, e in enumerate(mine)
        ]
        table.append(to_table(topic, pairs), {app: (stood or 0) + len(mine)}, {app: stood})
        rows = table.read()
        assert rows.schema == SCHEMAS[topic]
        new = pc.equal(rows["group_id"], "g-900000")
        assert set(rows.filter(new)["schema"].to_pylist()) == {SCHEMA_VERSION}
        assert set(rows.filter(pc.invert(new))["schema"].to_pylist()) == {None}
    lake = open_lake(root)
    counts = lake.rows("select schema, count(*) as n from event_calls group by all order by all")
    assert counts == [{"schema": SCHEMA_VERSION, "n": 12}, {"schema": None, "n": before}]
    assert {name: t.num_rows for name, t in lake.audit().items() if t.num_rows} == {}
