"""Proves that docs/how-to/troubleshooting.md quotes messages that the code has."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text("utf-8")
QUOTED = [line for block in re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
VALUE = re.compile(r"'?\b[A-Z][A-Z]+\b'?")  # a word in capitals stands for a value


@pytest.fixture(scope="module")
def texts() -> str:
    """Return all string literals of the packages, a line each, with a zero byte for each value in an f-string."""
    found = []
    for package in ("tutti", "gateway", "connectors", "streaming"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_code(message: str, texts: str) -> None:
    assert re.search(".*".join(map(re.escape, VALUE.split(message))), texts)


def test_messages_are_quoted() -> None:
    assert len(QUOTED) > 30
