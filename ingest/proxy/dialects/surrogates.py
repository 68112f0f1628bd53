"""JSON text with half a surrogate pair in it.

JavaScript clients cut strings by UTF-16 units and send what is left of a pair as `\\ud83d`: JSON by its
grammar, but no character, and no parser in Python takes it.
"""

from __future__ import annotations

import re

_MAYBE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"  # half of one
    rb"|\\.",  # any other escape, so that the `u` behind a written-out backslash is left alone
    re.DOTALL,
)
REPLACEMENT = rb"\ufffd"


def _mend(found: re.Match[bytes]) -> bytes:
    return REPLACEMENT if len(found[0]) == 6 else found[0]


def mended(body: bytes) -> bytes:
    """The same JSON text, every half pair replaced by U+FFFD as JavaScript's `toWellFormed` does.

    All other bytes stay as they are: numbers keep their digits, objects their order and white space.
    """
    return _ESCAPE.sub(_mend, body) if _MAYBE.search(body) else body
