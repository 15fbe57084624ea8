"""Proves that the core does, event by event, what the transcripts say; they read as its specification."""

from pathlib import Path

import pytest

from tests.transcripts.script import Script

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_transcript_holds(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text("utf-8")
    after = Script().run(before)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(after, "utf-8")
        return
    assert after == before


def test_a_wrong_line_is_found() -> None:
    text = "alone g1\n----\ng1 does something else\n"
    assert Script().run(text) != text
