"""Events of every type with any values that can stand in them, for property tests."""

from __future__ import annotations

import itertools
import typing
from typing import Any

import numpy as np
from hypothesis import strategies as st

from lake.events import (
    ASSESSMENTS,
    CATALOGUE,
    RELATIONS,
    ROLES,
    STATUSES,
    TREE_MAX,
    Event,
    ExecutionFinished,
    ExecutionScored,
    GroupDispatched,
    ModelCalled,
    PolicyPublished,
    VersionSpan,
    ids_to_bytes,
    logprobs_to_bytes,
)

INTS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**62)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=12)
SCALARS = {int: INTS, str: TEXTS, float: FLOATS, bool: st.booleans(), bytes: st.binary(max_size=40)}


def _any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint in SCALARS:
        return SCALARS[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(_any_of(arguments[0]), max_size=4).map(tuple)
    return st.one_of(st.none() if a is type(None) else _any_of(a) for a in arguments)


@st.composite
def calls(draw: st.DrawFn) -> ModelCalled:
    outputs = draw(IDS)
    cuts = sorted(draw(st.lists(st.integers(0, len(outputs)), max_size=3)))
    edges = [0, *cuts, len(outputs)]
    spans = tuple(VersionSpan(draw(st.none() | INTS), a, b) for a, b in itertools.pairwise(edges))
    call_id = draw(st.integers(1, TREE_MAX))
    parent = draw(st.none() | st.integers(0, call_id - 1))
    logprobs = draw(st.none() | st.just(-np.linspace(0, 20, len(outputs))))
    return ModelCalled(
        **{name: draw(_any_of(hint)) for name, hint in typing.get_type_hints(ModelCalled).items()
           if name in ModelCalled.__struct_fields__ and name != "spans"}
        | {"call_id": call_id, "parent_call_id": parent, "role": draw(st.sampled_from(ROLES))}
        | {"shared_len": 0 if parent is None else draw(st.integers(1, TREE_MAX - 24))}
        | {"relation": draw(st.sampled_from(RELATIONS)), "context_ids": ids_to_bytes(draw(IDS))}
        | {"output_ids": ids_to_bytes(outputs), "spans": draw(st.sampled_from([spans, ()]))}
        | {"place": draw(st.sampled_from([b"", bytes(range(16))]))}
        | {"experts": draw(st.sampled_from(["", f"{'ab' * 32}:77"]))}
        | {"output_logprobs": None if logprobs is None else logprobs_to_bytes(logprobs)}
    )  # fmt: skip


def _events(kind: type[Event]) -> st.SearchStrategy[Event]:
    if kind is ModelCalled:
        return calls()
    hints = typing.get_type_hints(kind)
    fields = {name: _any_of(hints[name]) for name in kind.__struct_fields__}
    if kind is GroupDispatched:
        fields["size"] = st.integers(1, 2**62)
    if kind is ExecutionFinished:
        fields |= {"status": st.sampled_from(STATUSES), "calls": COUNTS}
    if kind is PolicyPublished:
        fields |= {"took_us": COUNTS, "readback": st.none() | FLOATS.map(abs)}
    if kind is ExecutionScored:
        numbers = st.tuples(st.sampled_from(ASSESSMENTS[:2]), FLOATS)
        pair = numbers | st.just(("missing", None))
        return st.builds(
            lambda pair, rest: kind(**rest | {"assessment": pair[0], "value": pair[1]}),
            pair, st.fixed_dictionaries(fields),
        )  # fmt: skip
    return st.builds(kind, **fields)


ANY_EVENT = st.sampled_from(list(CATALOGUE.values())).flatmap(_events)
