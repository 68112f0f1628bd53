"""What the terminal is shown: short, and never obeyed."""

from __future__ import annotations

import base64
import json

import pytest

from lake.terminal import cell, show_json, show_table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (1.23456789, "1.2346"),
        (b"\xc1 no", r"b'\xc1 no'"),
        (b"x" * 16, f"b'{'x' * 16}'"),
        (b"x" * 17, f"b'{'x' * 16}'... 17 bytes"),
        ("two\nlines\tand é 組", "two\nlines\tand é 組"),
        ("\x1b]0;owned\x07\x00", r"\x1b]0;owned\x07\x00"),
        ([1, "a"], "[1, 'a']"),
    ],
)
def test_a_cell_shows_its_value_short_and_escaped(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_brackets_in_a_value_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([{"reason": "role is '[/b]', not one of [red]main[/red]"}])
    assert "role is '[/b]', not one of [red]main[/red]" in capsys.readouterr().out


def test_bytes_in_json_are_base64(capsys: pytest.CaptureFixture[str]) -> None:
    show_json([{"value": b"\xc1\x00"}])
    ((row,),) = [json.loads(capsys.readouterr().out)]
    assert base64.b64decode(row["value"]) == b"\xc1\x00"
