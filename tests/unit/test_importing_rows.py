"""What an import takes and what it refuses, with the place of each row."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.importing import lines as lines_module
from ingest.importing.kernels import MARK_BYTES, IdParser, NotIds
from ingest.importing.lines import line_calls, line_scores, lines
from ingest.importing.parquet import parquet_calls, parquet_scores
from ingest.importing.rows import CannotImport, RawCall, Refused, RowRefused, checked_score
from tests.support.raw_calls import SCHEMA, call, write_lines, write_parquet

GOOD = call("g/0", 0, [1, 2, 3], [4, 5])


def nothing(_done: int) -> None:
    pass


def read(path: Path) -> list[RawCall | Refused]:
    """With the arrays copied: the next row overwrites them."""
    reader = parquet_calls if path.suffix == ".parquet" else line_calls
    return [
        msgspec.structs.replace(r, input_ids=r.input_ids.copy(), output_ids=r.output_ids.copy())
        if isinstance(r, RawCall)
        else r
        for r in reader(str(path), nothing)
    ]


def without(name: str) -> dict[str, object]:
    return {n: v for n, v in GOOD.items() if n != name}


REFUSED = [
    (b"{", "no JSON object of a call"),
    (b"not json", "no JSON object of a call"),
    (b"[1]", "no JSON object of a call"),
    (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "no JSON object of a call"),
    (b"\xff\xfe", "no JSON object of a call"),
    (without("group_id"), "group_id is missing"),
    (without("execution_id"), "execution_id is missing"),
    (without("call_id"), "call_id is missing"),
    (without("input_ids"), "input_ids is missing"),
    (without("output_ids"), "output_ids is missing"),
    (GOOD | {"execution_id": None}, "execution_id is missing"),
    (GOOD | {"execution_id": ""}, "execution_id is missing"),
    (GOOD | {"group_id": 7}, "group_id is 7, text is needed"),
    (GOOD | {"group_id": "x" * 9000}, "group_id has 9000 characters, at most 8192"),
    (GOOD | {"call_id": True}, "call_id is True, an integer or text is needed"),
    (GOOD | {"call_id": 1.5}, "call_id is 1.5, an integer or text is needed"),
    (b'{"group_id": "g", "execution_id": "e", "call_id": 99999999999999999999, "input_ids": [], '
     b'"output_ids": []}', "call_id is"),
    (GOOD | {"input_ids": None}, "input_ids is missing"),
    (GOOD | {"input_ids": "text"}, "input_ids: is no list of integers"),
    (GOOD | {"input_ids": 5}, "input_ids: is no list of integers"),
    (GOOD | {"input_ids": [1, -2]}, "input_ids: item 1 is negative"),
    (GOOD | {"input_ids": [1, 2.5]}, "input_ids: item 1 is no integer"),
    (GOOD | {"output_ids": [1, 2**31]}, "output_ids: item 1 is over 2147483647"),
    (GOOD | {"output_ids": [[1]]}, "output_ids: item 0 is no integer"),
    (GOOD | {"output_ids": [None]}, "output_ids: item 0 is no integer"),
    (GOOD | {"output_logprobs": [-1.0]}, "1 output_logprobs for 2 output_ids"),
    (GOOD | {"output_logprobs": [-1.0, 0.5]}, "an output_logprob is not finite or above 0"),
    (GOOD | {"output_logprobs": [-1.0, -1e300]}, "an output_logprob is not finite or above 0"),
    (GOOD | {"output_logprobs": [-1.0, None]}, r"no JSON object of a call: .*output_logprobs\[1\]"),
    (GOOD | {"role": "user"}, "role is 'user', not one of main, main-summary"),
    (GOOD | {"version": -1}, "version is -1; it is 0 or more, and null where it is not known"),
    (GOOD | {"version": "v3"}, "version is 'v3'"),
    (GOOD | {"finish_reason": 3}, "finish_reason is 3, text is needed"),
]  # fmt: skip


def test_each_refused_line_is_named_and_the_good_ones_are_kept(tmp_path: Path) -> None:
    rows = [row for bad, _ in REFUSED for row in (GOOD, bad, b"", b"  \t\r")]
    found = read(write_lines(tmp_path / "calls.jsonl", rows))
    good = [r for r in found if isinstance(r, RawCall)]
    refused = [r for r in found if isinstance(r, Refused)]
    assert len(good) == len(refused) == len(REFUSED)
    for k, (one, (bad, reason)) in enumerate(zip(refused, REFUSED, strict=True)):
        assert one.place.row == 4 * k + 2
        assert str(one.place) == f"{tmp_path / 'calls.jsonl'}:{4 * k + 2}"
        assert re.search(reason, one.reason), (one.reason, reason)
        assert one.value == (bad if isinstance(bad, bytes) else msgspec.json.encode(bad))[:16384]
    for one in good:
        assert (one.input_ids.tolist(), one.output_ids.tolist()) == ([1, 2, 3], [4, 5])


def test_what_may_be_missing_has_a_default(tmp_path: Path) -> None:
    bare = {n: v for n, v in GOOD.items() if n != "output_logprobs"} | {
        "call_id": "a",
        "unknown": [{"x": []}],
    }
    rows = [bare, bare | dict.fromkeys(("role", "version", "finish_reason", "output_logprobs"))]
    for one in read(write_lines(tmp_path / "calls.jsonl", rows)):
        assert isinstance(one, RawCall)
        assert (one.role, one.version, one.finish_reason, one.output_logprobs) == ("main", None, "stop", None)
        assert one.call_id == "a"


def test_keys_in_any_order_spaces_and_names_inside_of_text_and_objects(tmp_path: Path) -> None:
    """What is cut out of a line is the list of the call, whatever else looks like it."""
    rows = [
        b'{"output_ids" : [ 4 ,5 ] , "call_id":0, "input_ids":\t[1,2 ,3], "execution_id":"e", '
        b'"group_id":"g"}',
        b'{"meta": {"input_ids": [9, 9], "output_ids": [8]}, "group_id": "g", "execution_id": "e", '
        b'"call_id": 0, "input_ids": [1,2,3], "output_ids": [4,5]}',
        b'{"group_id": "\\"input_ids\\": [7]", "execution_id": "\\"output_ids\\":[6]", "call_id": 0, '
        b'"role": "main", "input_ids": [1,2,3], "output_ids": [4,5]}',
        b'{"input_ids": [9], "group_id": "g", "execution_id": "e", "call_id": 0, "input_ids": [1,2,3], '
        b'"output_ids": [4,5]}',  # as every JSON reader: the last one counts
        b'{"input\\u005fids": [1,2,3], "group_id": "g", "execution_id": "e", "call_id": 0, '
        b'"output_ids": [4,5]}',
        b'{"input_ids": [1,2,3], "finish_reason": "]", "group_id": "g]", "execution_id": "e", "call_id": 0, '
        b'"output_ids": [4,5]}\r',
    ]
    for one in read(write_lines(tmp_path / "calls.jsonl", rows)):
        assert isinstance(one, RawCall), one
        assert (one.input_ids.tolist(), one.output_ids.tolist()) == ([1, 2, 3], [4, 5])


def test_parquet_of_any_integers_and_rows_that_are_refused(tmp_path: Path) -> None:
    wide = SCHEMA
    for name, kind in (("input_ids", pa.large_list(pa.int64())), ("output_ids", pa.list_(pa.uint32())),
                       ("output_logprobs", pa.list_(pa.float64())), ("version", pa.float64())):  # fmt: skip
        wide = wide.set(wide.get_field_index(name), pa.field(name, kind))
    bad = [
        (without("execution_id"), "execution_id is missing"),
        (without("input_ids"), "input_ids is missing"),
        (GOOD | {"input_ids": [1, -1]}, "input_ids: item -1 is negative"),
        (GOOD | {"input_ids": [1, 2**31]}, "input_ids: item 2147483648 is over 2147483647"),
        (GOOD | {"output_ids": [1, None]}, "output_ids: an item is null"),
        (GOOD | {"output_logprobs": [-1.0]}, "1 output_logprobs for 2 output_ids"),
        (GOOD | {"version": 2.5}, "version is 2.5"),
    ]
    path = write_parquet(
        tmp_path / "c.parquet", [r for b, _ in bad for r in (GOOD | {"version": 3}, b)], wide
    )
    found = read(path)
    for k, (_, reason) in enumerate(bad):
        good, refused = found[2 * k : 2 * k + 2]
        assert isinstance(good, RawCall)
        assert isinstance(refused, Refused)
        assert (good.input_ids.tolist(), good.output_ids.dtype, good.version) == ([1, 2, 3], np.int32, 3)
        assert (refused.place.row, refused.reason.split(";")[0]) == (2 * k + 2, reason)


def test_a_parquet_file_that_is_none_or_has_no_calls_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"execution_id": ["e"]}), tmp_path / "a.parquet")
    with pytest.raises(CannotImport, match="no column group_id, call_id, input_ids, output_ids; it has exec"):
        read(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(CannotImport, match=r"b\.parquet is no whole Parquet file"):
        read(tmp_path / "b.parquet")
    texts = SCHEMA.set(SCHEMA.get_field_index("input_ids"), pa.field("input_ids", pa.list_(pa.string())))
    path = write_parquet(tmp_path / "c.parquet", [GOOD | {"input_ids": ["a"]}], texts)
    with pytest.raises(CannotImport, match="a list of integers is needed"):
        read(path)


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
def test_lines_of_any_length_over_the_edges_of_the_buffer(
    tmp_path: Path, codec: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "BUFFER_BYTES", 16)
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 100)
    rng = np.random.default_rng(0)
    wanted = [bytes(rng.integers(48, 58, n).astype(np.uint8)) for n in rng.integers(0, 101, 200)]
    path = write_lines(tmp_path / "x", [*wanted, b"y" * 1000, b"behind"], codec)
    if codec is None:
        path.write_bytes(path.read_bytes()[:-1])  # no end of line at the end
    found = [
        (n, line if isinstance(line, str) else bytes(line.view())) for n, line in lines(str(path), nothing)
    ]
    too_long = "a line of 1000 bytes, at most 100"
    assert found == list(enumerate([*wanted, too_long, b"behind"], 1))


def test_a_compressed_file_of_several_frames_and_one_that_is_damaged(tmp_path: Path) -> None:
    for codec in ("zstd", "gzip"):
        parts = [
            write_lines(tmp_path / str(n), [call("g/0", n, [n], [n])], codec).read_bytes() for n in range(3)
        ]
        path = tmp_path / codec
        path.write_bytes(b"".join(parts))
        assert [r.call_id for r in read(path) if isinstance(r, RawCall)] == [0, 1, 2]
    many = b"".join(msgspec.json.encode(call("g/0", n, [n] * 500, [n])) + b"\n" for n in range(5000))
    damaged = bytearray(gzip.compress(many))
    damaged[len(damaged) // 2 :] = b"\x00" * 1000
    (tmp_path / "damaged").write_bytes(damaged)
    *good, last = read(tmp_path / "damaged")
    assert good
    assert isinstance(last, Refused)
    assert "the file is damaged here" in last.reason
    assert last.place.row == len(good) + 1


# -------------------------------------------------------------------------------------- parsing
def test_a_text_that_begins_as_the_one_before_it_is_parsed_from_there() -> None:
    rng, parser, ids, longest = np.random.default_rng(0), IdParser(), list[int](), 0
    for _ in range(300):
        cut = int(rng.integers(0, len(ids) + 1)) if rng.random() < 0.1 else len(ids)
        ids = ids[:cut] + rng.integers(0, 10 ** int(rng.integers(1, 10)), int(rng.integers(0, 2000))).tolist()
        separators = (b",", b", ", b" ,\t")[int(rng.integers(0, 3)) if rng.random() < 0.1 else 0]
        text = b"[" + separators.join(b"%d" % i for i in ids) + b"]"
        assert parser.parse(text).tolist() == ids
        longest = max(longest, len(text))
    assert longest > 4 * MARK_BYTES
    for bad in (text[:-1], text[:-1] + b",]", text[:-1] + b",-1]", text[: len(text) // 2]):
        with pytest.raises(NotIds):
            parser.parse(bad)
        assert parser.parse(text).tolist() == ids
    assert parser.parse(b"[]").tolist() == []
    assert parser.parse(b"[ ]").tolist() == []
    assert parser.parse(b"[ 7 ]").tolist() == [7]


# --------------------------------------------------------------------------------------- scores
@pytest.mark.parametrize(
    ("score", "status", "ended", "assessment"),
    [
        (1.5, None, "completed", "scored"),
        (0, None, "completed", "scored"),
        (None, None, "completed", "missing"),
        (-2, "scored", "completed", "scored"),
        (0.5, "partial", "harness_timeout", "partial"),
        (None, "missing", "completed", "missing"),
        (1, "completed", "completed", "scored"),
        (None, "completed", "completed", "missing"),
        (0.5, "harness_timeout", "harness_timeout", "partial"),
        (None, "harness_timeout", "harness_timeout", "missing"),
        (0, "crashed", "crashed", "scored"),
        (None, "crashed", "crashed", "missing"),
        (None, "overall_timeout", "overall_timeout", "missing"),
        (None, "lost", "lost", "missing"),
    ],
)
def test_scores(score: float | None, status: str | None, ended: str, assessment: str) -> None:
    found = checked_score(lines_module.Place("f", 1), {"execution_id": "e", "score": score, "status": status})
    assert (found.status, found.assessment, found.value) == (ended, assessment, score)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"score": 1}, "execution_id is missing"),
        (
            {"execution_id": "e", "status": "fine"},
            "status is 'fine', not one of scored, partial, missing, comp",
        ),
        ({"execution_id": "e", "status": "scored"}, "a missing one is `missing`, never 0"),
        ({"execution_id": "e", "status": "missing", "score": 0}, "score is 0 where the status is missing"),
        ({"execution_id": "e", "status": "lost", "score": 0}, "score is 0 where the status is lost"),
        ({"execution_id": "e", "score": "1"}, "score is '1'; a finite number is needed"),
        ({"execution_id": "e", "score": True}, "score is True"),
        ({"execution_id": "e", "score": 10**400}, "a finite number is needed"),
        ({"execution_id": "e", "score": float("nan")}, "score is nan"),
    ],
)
def test_scores_that_are_refused(row: dict[str, object], reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        checked_score(lines_module.Place("f", 1), row)


def test_scores_from_lines_and_from_parquet_are_the_same(tmp_path: Path) -> None:
    rows = [{"execution_id": "a", "score": 1.0}, {"score": 2.0}, {"execution_id": "b", "status": "missing"}]
    schema = pa.schema([("execution_id", pa.string()), ("score", pa.float64()), ("status", pa.string())])
    by_line = list(line_scores(str(write_lines(tmp_path / "s.jsonl", rows)), nothing))
    columns = list(parquet_scores(str(write_parquet(tmp_path / "s.parquet", rows, schema)), nothing))
    for one, other in zip(by_line, columns, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Refused) and isinstance(other, Refused):
            assert (
                (one.place.row, one.reason)
                == (other.place.row, other.reason)
                == (2, "execution_id is missing")
            )
        else:
            assert msgspec.structs.replace(one, place=None) == msgspec.structs.replace(other, place=None)
