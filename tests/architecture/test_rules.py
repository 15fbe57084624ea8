"""Proves that every rule of the tidy tests can fail: each finds what was planted and lets the clean case pass."""

from collections.abc import Callable, Iterator

import pytest

from tests.architecture import rules

Rule = Callable[[str], Iterator[str]]
# Written in two halves, so that the rules do not find them here.
TO_DO, MARK_SKIP, HOME = "# TO" + "DO later", "@pytest.mark.sk" + "ip", "/ho" + "me/somebody/x"
IGNORE, NOQA, HOLLOW = "# type: ig" + "nore", "# no" + "qa", "assert " + "True"


@pytest.mark.parametrize(
    ("rule", "planted", "clean"),
    [
        (rules.length, "x = 1\n" * 701, "x = 1\n" * 700),
        (rules.function_length, "def f():\n" + "    x = 1\n" * 80, "def f():\n" + "    x = 1\n" * 79),
        (rules.function_length, "async def f():\n" + "    x = 1\n" * 80, "async def f():\n    x = 1\n"),
        (rules.swallowed_errors, "try:\n    f()\nexcept:\n    g()\n", "try:\n    f()\nexcept OSError:\n    g()\n"),
        (rules.swallowed_errors, "try:\n    f()\nexcept Exception:\n    pass\n", "def f():\n    pass\n"),
        (rules.swallowed_errors, "try:\n    f()\nexcept BaseException:\n    ...\n", "x = ...\n"),
        (rules.loose_comments, f"x = 1  {TO_DO}\n", f"x = '{TO_DO}'\n"),
        (rules.loose_comments, f"x = 1  {IGNORE}\n", f"x = 1  {IGNORE}[attr-defined]  # untyped upstream\n"),
        (rules.loose_comments, f"x = 1  {IGNORE}[attr-defined]\n", "x = 1\n"),
        (rules.loose_comments, f"x = 1  {NOQA}\n", f"x = 1  {NOQA}: S104\n"),
        (rules.hollow_tests, f"{MARK_SKIP}\ndef test(): f()\n", "def test(): assert f()\n"),
        (rules.hollow_tests, "def test(): pytest.sk" + "ip('no')\n", "def test(): reader.skip(3)\n"),
        (rules.hollow_tests, f"def test():\n    {HOLLOW}\n", "def test():\n    assert found is True\n"),
        (rules.impure_calls, "t = datetime.now(UTC)\n", "t = now.wall_us\n"),
        (rules.impure_calls, "with open('x') as f: pass\n", "f = reopen('x')\n"),
        (lambda text: rules.undeclared_imports(text, {"zmq"}), "def f():\n    import zmqs\n", "import os, zmq.a\n"),
        (
            lambda text: rules.unknown_errors(text, {"OSError"}),
            'def f():\n    """Do.\n\n    Raises:\n        Gone: it is not there.\n    """\n',
            'class Gone(Exception):\n    """Gone.\n\n    Raises:\n        OSError, Gone: both.\n    """\n',
        ),
        (lambda text: rules.missing_modules(text, {"x.py"}.__contains__), "| `y.py` |\n", "| `x.py` |\n"),
        (lambda text: rules.missing_tests(text, {"test_x"}), "| `test_y` |\n", "| `test_x`, `unit/test_x.py`, test_y |\n"),
        (lambda text: rules.missing_tests(text, {"test_x"}), "| `test_x_...` |\n", "| `test_x` |\n"),
        (rules.machine_paths, f"{HOME}\n", "/home/spark/x, work/main\n"),
        (lambda text: rules.unknown_installs(text, {"otel"}), "pip install 'tutti-ingest[otel]'", "pip install '.[otel]'"),
        (lambda text: rules.unknown_installs(text, {"otel"}), "pip\ninstall tutti-ingest", "pip install ."),
        (lambda text: rules.unknown_installs(text, {"otel"}), "pip install '.[otel,kafka]'", "pip install '/path/WHEEL[otel]'"),
        (lambda text: rules.unknown_targets(text, {"demo"}), "`make tea`", "`make demo`, and make sure"),
    ],
)
def test_a_rule_finds_what_was_planted(rule: Rule, planted: str, clean: str) -> None:
    assert len(list(rule(planted))) == 1
    assert list(rule(clean)) == []


def test_links_are_the_relative_ones() -> None:
    assert list(rules.links("[a](docs/a.md#part) [b](https://example.org/) ![c](d.svg)")) == ["docs/a.md", "d.svg"]
