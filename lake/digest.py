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
