"""JSON text with half a surrogate pair in it.

JavaScript clients cut strings by UTF-16 units and send what is left of a pair as `\\ud83d`: JSON by its
grammar, but no character, and no parser in Python takes it.
"""

from __future__ import annotations

import re

_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_OTHER = rb"\\(?:[^u]|u(?![dD][89a-fA-F]))"  # so that the `u` behind a written-out backslash is left alone
_RUNS = re.compile(rb"((?:[^\\]++|" + _PAIR + b"|" + _OTHER + rb")++)|" + _HALF, re.DOTALL)
REPLACEMENT = rb"\ufffd"


def mended(body: bytes) -> bytes:
    """The same JSON text, every half pair replaced by U+FFFD as JavaScript's `toWellFormed` does.

    All other bytes stay as they are: numbers keep their digits, objects their order and white space.
    Costs up to a microsecond an escape, so it is for a body that a parser has refused.
    """
    return _RUNS.sub(lambda run: run[1] or REPLACEMENT, body)
