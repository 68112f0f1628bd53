"""Where one statement ends and the next begins, in text that may end in the middle of one.

    split("from calls; select ';' -- one;\n")    (["from calls"], "select ';' -- one;\n")

Semicolons in strings, quoted names and comments end nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PART = re.compile(
    r"""(?P<comment>--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))
    |(?P<semicolon>;)
    |[eE]'(?:\\.|''|[^'\\])*(?:'|$)      # a string with escapes
    |'(?:''|[^'])*(?:'|$)
    |"(?:""|[^"])*(?:"|$)
    |\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|$)
    |(?P<space>\s+)
    |\w+
    |.""",
    re.S | re.X,
)


def split(text: str) -> tuple[list[str], str]:
    """The statements that end in a semicolon, without it, and what follows the last of them.

    What holds nothing but comments is no statement; what follows is empty where it holds no more.
    """
    finished: list[str] = []
    start, empty = 0, True
    for part in _PART.finditer(text):
        if part["semicolon"]:
            if not empty:
                finished.append(text[start : part.start()].strip())
            start, empty = part.end(), True
        elif not part["comment"] and not part["space"]:
            empty = False
    return finished, "" if empty else text[start:].strip()


def statements(text: str) -> list[str]:
    """All statements of a text; the last needs no semicolon."""
    finished, rest = split(text)
    return [*finished, *([rest] if rest else [])]


def pieces(text: str) -> Iterator[str]:
    """Statements, and between them the lines that begin with a dot: commands of the console."""
    held: list[str] = []
    for line in text.splitlines(keepends=True):
        before = split("".join(held))[1]
        if line.lstrip().startswith(".") and not before:
            yield from statements("".join(held))
            held = []
            yield line.strip()
        else:
            held.append(line)
    yield from statements("".join(held))
