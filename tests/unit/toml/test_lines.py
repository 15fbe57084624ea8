"""Tests of the line numbers of keys, for every way to write a key in TOML."""

from __future__ import annotations

import tomllib

from tutti.toml.lines import key_lines, line_of

TEXT = '''\
# a = 1
name = "x"
"quoted key" = 2
a.b = 3
long = """
name = "not a key"
[nor.a.table]
"""

[table]        # with a word
key = 1
inner = { one = 1, two = 2 }
  indented = 5
[ "odd name" . deep ]
x = 1
[[list]]
y = 1
'''


def test_each_key_is_found_at_its_line() -> None:
    tomllib.loads(TEXT)
    assert key_lines(TEXT) == {
        ("name",): 2,
        ("quoted key",): 3,
        ("a",): 4,
        ("a", "b"): 4,
        ("long",): 5,
        ("table",): 10,
        ("table", "key"): 11,
        ("table", "inner"): 12,
        ("table", "indented"): 13,
        ("odd name", "deep"): 14,
        ("odd name", "deep", "x"): 15,
        ("list",): 16,
        ("list", "y"): 17,
    }


def test_a_key_of_an_inline_table_has_the_line_of_the_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("table", "inner", "two")) == 12
    assert line_of(lines, ("nowhere",)) is None
