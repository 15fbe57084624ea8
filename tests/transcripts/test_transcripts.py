"""Proves that the core does, event by event, what the transcripts say; they read as its specification."""

from pathlib import Path

import pytest

from tests.transcripts.script import Script
from tests.transcripts.whole_script import WholeScript

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))
GROUP = "group_"  # names of files about whole groups


def script_of(name: str) -> Script:
    return WholeScript() if name.startswith(GROUP) else Script()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_transcript_holds(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text("utf-8")
    script = script_of(path.name)
    after = script.run(before)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(after, "utf-8")
        before = after
    assert after == before
    wrong = [line for line in after.splitlines() if line.startswith(("WRONG", "PROBLEM"))] + script.finish()
    assert not wrong or not path.name.startswith(GROUP), "\n".join(wrong)


def test_a_wrong_line_is_found() -> None:
    text = "alone g1\n----\ng1 does something else\n"
    assert Script().run(text) != text
