"""A lake from Python: Arrow, Polars and pandas hold the same rows, types and nulls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace
from lake.query import Lake, QueryError
from tests.support import small_lake

TYPES = """select * from (values
    (1, 9007199254740993, 'a', 0.5::float, true, [1, 2]::int[], timestamp '2026-01-01'),
    (null, null, null, null, null, null, null)) t(i, big, s, f, b, l, ts)"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return headrace.open(small_lake.make(tmp_path_factory.mktemp("lake")), memory="500MB", timeout_s=60)


def test_a_relation_becomes_what_is_wanted(lake: Lake) -> None:
    relation = lake.sql("select role, count(*) as n from calls group by role")
    assert relation.to_arrow_table().to_pylist() == [{"role": "main", "n": 36}]
    assert relation.pl().to_dicts() == [{"role": "main", "n": 36}]
    assert relation.df().to_dict("records") == [{"role": "main", "n": 36}]
    assert [b.num_rows for b in relation.to_arrow_reader(10)] == [1]


def test_types_and_nulls_are_the_same_in_all(lake: Lake) -> None:
    relation = lake.sql(TYPES)
    arrow = relation.to_arrow_table()
    assert [str(kind) for kind in arrow.schema.types] == [
        "int32", "int64", "string", "float", "bool", "list<l: int32>", "timestamp[us]",
    ]  # fmt: skip
    polars = relation.pl()
    assert polars.dtypes == [
        pl.Int32, pl.Int64, pl.String, pl.Float32, pl.Boolean, pl.List(pl.Int32), pl.Datetime("us"),
    ]  # fmt: skip
    assert [polars[name].null_count() for name in polars.columns] == [1] * 7
    assert polars["big"][0] == 9007199254740993
    frame = relation.df()
    assert [frame[name].isna().sum() for name in frame.columns] == [1] * 7
    assert frame["ts"].dtype.kind == "M"


@pytest.mark.parametrize("name", ["event_calls", "weights", "trees", "progress"])
def test_a_table_is_the_same_in_all(lake: Lake, name: str) -> None:
    arrow, polars, pandas = lake.arrow(name), lake.polars(name), lake.pandas(name)
    assert list(pandas.columns) == polars.columns == arrow.column_names
    assert polars.to_arrow().num_rows == len(pandas) == arrow.num_rows
    for column in arrow.column_names:
        kind = arrow.schema.field(column).type
        assert pandas[column].dtype == pd.ArrowDtype(kind)
        assert pandas[column].isna().sum() == polars[column].null_count() == arrow[column].null_count
        assert pa.chunked_array(pandas[column].array._pa_array).equals(arrow[column])


def test_integers_with_nulls_stay_integers_in_pandas(lake: Lake) -> None:
    frame = lake.pandas("event_calls")
    assert frame["schema"].dtype == pd.ArrowDtype(pa.int32())
    assert lake.pandas("groups")["consumed_us"].dtype == pd.ArrowDtype(pa.int64())


def test_long_lists_stay_buffers(lake: Lake) -> None:
    """Ten million numbers: as Python numbers they would take a third of a gigabyte."""
    relation = lake.sql("select range(1000000)::int[] as ids from range(10)")
    arrow = relation.to_arrow_table()
    ids = arrow["ids"].combine_chunks().values
    assert ids.to_numpy(zero_copy_only=True).dtype == np.int32
    assert arrow.nbytes < 45_000_000
    frame = relation.df()
    assert all(isinstance(value, np.ndarray) and value.dtype == np.int32 for value in frame["ids"])
    series = relation.pl()["ids"]
    assert series.explode().to_numpy().dtype == np.int32


def test_a_lake_that_is_none_and_a_name_that_is_none(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a run nor a lake"):
        headrace.open(tmp_path)
    for ask in (lake.arrow, lake.polars, lake.pandas):
        with pytest.raises(QueryError, match="no table or model 'nothing'"):
            ask("nothing")
