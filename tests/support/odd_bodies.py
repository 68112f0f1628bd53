"""Bodies that nobody should send: good ones with anything at all in one of their places."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@st.composite
def odd_bodies(draw: st.DrawFn, good: dict[str, Any], odd: st.SearchStrategy[Any]) -> Any:
    """A copy of `good` with up to three of its values gone or replaced by `odd` ones, or any JSON."""
    body = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(body)
        if not places:
            return draw(JSON)
        container, key = draw(st.sampled_from(places))
        if draw(st.booleans()):
            container[key] = draw(odd | JSON)
        else:
            del container[key]
    return body
