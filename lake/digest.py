"""Digests of tables by content: the same rows in the same order, the same digest.

Independent of chunks, slices, files and compression; used to prove that a replay derived the same.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def table_digest(table: pa.Table) -> str:
    """sha256 over names, types and values of the columns, in hexadecimal."""
    h = hashlib.sha256()
    for field in table.schema:
        h.update(f"{field.name}:{_type_name(field.type)}:{table.num_rows};".encode())
        _feed(h, table.column(field.name).combine_chunks(), field.type)
    return h.hexdigest()


def _type_name(kind: pa.DataType) -> str:
    """A list is its values' type: writers name the inner field `item`, `element` or `l`."""
    return f"list<{_type_name(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


def _feed(h: hashlib._Hash, array: pa.Array, kind: pa.DataType) -> None:
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of an empty column
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    h.update(np.packbits(np.asarray(array.is_valid(), dtype=bool)).tobytes())
    if pa.types.is_list(kind):
        h.update(np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64).tobytes())
        _feed(h, array.flatten(), kind.value_type)
    elif pa.types.is_struct(kind):
        for i, field in enumerate(kind):
            _feed(h, array.field(i), field.type)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        raw = array.cast(pa.binary())
        h.update(np.asarray(pc.fill_null(pc.binary_length(raw), 0), np.int64).tobytes())
        h.update(b"".join(v for v in raw.to_pylist() if v))
    else:
        fill = False if pa.types.is_boolean(kind) else 0
        values = pc.fill_null(array, pa.scalar(fill, kind)).to_numpy(zero_copy_only=False)
        h.update(np.ascontiguousarray(values).tobytes())


class OrderedDigest:
    """sha256 over rows that come in order and in parts: however they are cut, the same rows, the same digest.

    Each column has its own stream of validity, lengths and values, so that nothing of a part is kept.  A
    column that is null in every row is as if it were not there: a table from before the column was added
    equals the one that is made again.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[str, _Stream] = {}

    def add(self, table: pa.Table) -> None:
        """Take in the next rows."""
        for field in table.schema:
            stream = self._columns.get(field.name)
            if stream is None:
                stream = self._columns[field.name] = _Stream()
                stream.skip(self.rows)
            for chunk in table.column(field.name).chunks:
                stream.add(chunk)
        for name in self._columns.keys() - set(table.column_names):
            self._columns[name].skip(table.num_rows)
        self.rows += table.num_rows

    def hexdigest(self) -> str:
        h = hashlib.sha256(f"{self.rows};".encode())
        for name, stream in sorted(self._columns.items()):
            if stream.kind is not None:
                h.update(f"{name}:{stream.kind}:{stream.hexdigest()};".encode())
        return h.hexdigest()


class _Stream:
    """The values of one column, or of one level of a nested one; `kind` is None while all are null."""

    def __init__(self) -> None:
        self.kind: str | None = None
        self._valid, self._lengths, self._values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._inner: list[_Stream] = []

    def skip(self, rows: int) -> None:
        """So many nulls."""
        self._valid.update(bytes(rows))

    def add(self, array: pa.Array) -> None:
        self._valid.update(np.asarray(array.is_valid()).astype(np.uint8).tobytes())
        array = array.drop_null()
        if not len(array):
            return
        kind = _type_name(array.type)
        if self.kind not in (None, kind):
            raise TypeError(f"a column is first {self.kind}, then {kind}")
        self.kind = kind
        if pa.types.is_list(array.type):
            self._lengths.update(np.asarray(pc.list_value_length(array), np.int64).tobytes())
            self._into(0, array.flatten())
        elif pa.types.is_struct(array.type):
            for i, field in enumerate(array.flatten()):
                self._into(i, field)
        elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            raw = array.cast(pa.binary())
            edges = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw) + 1]
            self._lengths.update(np.diff(edges).astype(np.int64).tobytes())
            if raw.buffers()[2] is not None:
                self._values.update(memoryview(raw.buffers()[2])[edges[0] : edges[-1]])
        else:
            values = array.to_numpy(zero_copy_only=False)
            self._values.update(np.ascontiguousarray(values).tobytes())

    def _into(self, index: int, array: pa.Array) -> None:
        while len(self._inner) <= index:
            self._inner.append(_Stream())
        self._inner[index].add(array)

    def hexdigest(self) -> str:
        own = [h.hexdigest() for h in (self._valid, self._lengths, self._values)]
        return hashlib.sha256(" ".join(own + [s.hexdigest() for s in self._inner]).encode()).hexdigest()
