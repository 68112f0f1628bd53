"""The runner: what a file must be, what is refused and how, what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from lake.models import EVENT_TABLES, INPUTS, SQL_ROOT, ModelError, Models, Params, register
from tests.support.recorder import MODELS, Recorder, connect

FOLDERS = {"staging", "trees", "paths", "weights", "groups", "reports", "audits"}
READ_BY_OTHERS_THAN_MODELS = {"trees", "weights", "group_state", "tools", "publications", "violations"}
FOR_USERS = {"leaf_paths"}
GOOD = "-- One row a thing.\n-- Key: x\nwith final as (select 1 as x)\n\nselect * from final\n"


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / f"{name}.sql").write_text(text)
    return root


def reading(source: str) -> str:
    return GOOD.replace("select 1 as x", f"select x from {source}")


# ------------------------------------------------------------------------------------- our files
@pytest.mark.parametrize("model", MODELS.describe(), ids=lambda m: m.name)
def test_every_file_has_a_grain_a_key_and_one_select(model):
    text = (SQL_ROOT / model.folder / f"{model.name}.sql").read_text()
    assert model.folder in FOLDERS
    assert model.header.startswith("Question: " if model.folder == "reports" else "One row")
    assert model.key
    assert text.rstrip().endswith("select * from final")
    assert len(duckdb.extract_statements(model.select)) == 1
    assert max(map(len, text.splitlines())) <= 110


def test_no_file_is_an_orphan():
    read = {name for m in MODELS.describe() for name in m.inputs}
    ends = {m.name for m in MODELS.describe() if m.folder in ("reports", "audits")}
    elsewhere = READ_BY_OTHERS_THAN_MODELS | FOR_USERS
    assert {m.name for m in MODELS.describe()} == (read - INPUTS) | ends | elsewhere
    assert len(list(SQL_ROOT.rglob("*"))) == len(MODELS.by_name) + len(FOLDERS)
    assert set(INPUTS) == read & INPUTS


def test_each_model_comes_after_its_inputs():
    seen = set(INPUTS)
    for model in MODELS.describe():
        assert model.inputs <= seen
        seen.add(model.name)


# ------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("select 1 as x", r"a\.sql: no header"),
        ("-- One row.\nselect 1 as x", r"a\.sql: no header"),
        ("-- One row.\n-- Key: x\nselect 1 as x; select 2", r"a\.sql: 2 statements"),
        ("-- One row.\n-- Key: x\nselect 1 as x;", r"a\.sql: ends in a semicolon"),
        ("-- One row.\n-- Key: x\ndrop table event_calls", r"a\.sql: 1 statements; one bare SELECT"),
        ("-- One row.\n-- Key: x\nselect 1 as x frmo y z", r"a\.sql: Parser Error"),
        (reading("nowhere"), r"/a\.sql: unknown input 'nowhere'"),
        (reading("a"), r"a cycle of models: .*a\.sql <- .*a\.sql"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, text, sentence):
    with pytest.raises(ModelError, match=sentence):
        Models.load(write(tmp_path, a=text))


def test_a_cycle_names_its_files(tmp_path):
    with pytest.raises(ModelError, match=r"a cycle of models: .*\.sql <- .*\.sql <- .*\.sql"):
        Models.load(write(tmp_path, a=reading("b"), b=reading("c"), c=reading("a")))


def test_a_name_is_taken_once(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    write(tmp_path / "one", a=GOOD)
    write(tmp_path / "two", a=GOOD)
    with pytest.raises(ModelError, match=r"two/a\.sql: the name is taken by one/a"):
        Models.load(tmp_path)
    (tmp_path / "two" / "a.sql").rename(tmp_path / "two" / "event_calls.sql")
    with pytest.raises(ModelError, match=r"two/event_calls\.sql: the name is taken by the inputs"):
        Models.load(tmp_path)


def test_an_empty_folder_is_not_an_installation(tmp_path):
    with pytest.raises(ModelError, match="no SQL models there"):
        Models.load(tmp_path)


def test_parameters_have_bounds():
    with pytest.raises(ModelError, match="j_max is -1, 0 "):
        Params(j_max=-1)
    with pytest.raises(ModelError, match="'mean', not 'centred' or 'standardised'"):
        Params(advantage="mean")


def test_unknown_names_and_absent_inputs():
    with duckdb.connect() as con:
        with pytest.raises(ModelError, match="'no_such' is not an event table"):
            register(con, {"no_such": pa.table({})})
        with pytest.raises(ModelError, match="no model 'no_such'; there are admitted, "):
            MODELS.derive(con, ["no_such"], Params())
        with pytest.raises(ModelError, match=r"event_executions(.|\n)*Register the event tables first"):
            MODELS.derive(con, ["weights"], Params())


# ------------------------------------------------------------------------------------- running
def names(con: duckdb.DuckDBPyConnection) -> set[str]:
    found = con.execute("select table_name from duckdb_tables() union select view_name from duckdb_views()")
    return {name for (name,) in found.fetchall()} & ({*MODELS.by_name, "params"})


def test_all_models_run_on_an_empty_lake_and_leave_nothing_behind():
    with connect({}) as con:
        derived = MODELS.derive(con, list(MODELS.by_name), Params())
        assert {name: t.num_rows for name, t in derived.items() if t.num_rows} == {
            "clock": 1,
            "run_settings": 1,
        }
        assert names(con) == set()


def test_keep_leaves_the_relations_and_define_all_of_them():
    recorder = Recorder()
    recorder.whole("g", [1.0, 0.0])
    with connect(recorder.tables()) as con:
        derived = MODELS.derive(con, ["weights"], Params(), keep=True)
        assert con.execute("select count(*) from weights").fetchone() == (2,)
        assert con.execute("select count(*) from admitted").fetchone() == (2,)
        assert derived["weights"].num_rows == 2
    with connect(recorder.tables()) as con:
        MODELS.define(con, Params(j_max=1))
        assert names(con) == {*MODELS.by_name, "params"}
        assert con.execute("select n_paths from weights order by index").fetchall() == [(1,), (1,)]
        with pytest.raises(ModelError, match="use another connection"):
            MODELS.derive(con, ["weights"], Params())
        assert names(con) == {*MODELS.by_name, "params"}


def test_given_tables_are_read_not_derived():
    recorder = Recorder()
    recorder.whole("g", [1.0, 0.0])
    with connect(recorder.tables()) as con:
        admitted = MODELS.derive(con, ["admitted"], Params())["admitted"]
        con.register("admitted", admitted.slice(0, 1))
        weights = MODELS.derive(con, ["weights"], Params(), given=["admitted"])["weights"]
        assert weights["n_targets"].to_pylist() == [3, 0]
        assert con.execute("select count(*) from admitted").fetchone() == (1,)


def test_event_tables_are_those_of_the_catalogue():
    assert set(EVENT_TABLES) == INPUTS - {"params"}
