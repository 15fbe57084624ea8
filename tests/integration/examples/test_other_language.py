"""Tests that docs/reference/wire.md and formats.md suffice: JavaScript code written from them alone agrees with every test vector,
sends to a real gateway, and reads its files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess
from tools import vectors
from tutti.producer import Producer
from tutti.reader import Reader

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples/other-language"
WAIT_S = 120.0


def node(program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end."""
    assert shutil.which("node"), "node is missing (Debian: apt-get install nodejs)"
    command = ["node", str(FOLDER / program), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize("name", sorted(vectors.pages()))
def test_vectors_equal_the_output_of_this_release(name: str) -> None:
    assert (ROOT / "docs/reference/vectors" / name).read_text("utf-8") == vectors.pages()[name], "run: python -m tools.vectors"


def test_every_vector_holds_in_the_other_language() -> None:
    files = [str(path) for path in sorted((ROOT / "docs/reference/vectors").glob("*.json"))]
    checked = node("check.mjs", *files)
    assert checked.returncode == 0, checked.stderr
    count = sum(len(json.loads(Path(file).read_text("utf-8"))["vectors"]) for file in files)
    assert checked.stdout == f"{count} vectors match\n"


def test_a_vector_that_is_wrong_is_found(tmp_path: Path) -> None:
    """Else all that the test above shows is that nothing is looked at."""
    kept = []
    for name in vectors.pages():
        for vector in json.loads((ROOT / "docs/reference/vectors" / name).read_text("utf-8"))["vectors"]:
            data = vector["bytes"]
            if isinstance(data, str) and data and vector["name"] != "greeting":
                last = data[:-1] + ("1" if data[-1] == "0" else "0")
                kept.append({**vector, "bytes": last})
    (tmp_path / "wrong.json").write_text(json.dumps({"vectors": kept}))
    checked = node("check.mjs", str(tmp_path / "wrong.json"))
    assert checked.returncode == 1
    # The last byte of a frame or a body may be padding, which nothing covers.
    found = {line.split('"')[1] for line in checked.stderr.splitlines()}
    assert found >= {vector["name"] for vector in kept if vector["kind"] not in ("frame", "body")}


def test_the_example_sends_resumes_reads_files_and_reports_rejections(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1200)] + ["long " * 4000, "ü"]
    with GatewayProcess(tmp_path) as gateway:
        where = ("127.0.0.1", str(gateway.port), "lines", "from-javascript")
        first = node("send.mjs", *where, text="\n".join(lines[:700]))
        assert first.returncode == 0, first.stderr
        assert first.stdout.split() == [str(number) for number in range(700)]
        again = node("send.mjs", *where, text="\n".join(lines))
        assert again.returncode == 0, again.stderr
        assert again.stdout.split() == [str(number) for number in range(700, len(lines))]
        with Producer(gateway.url, producer="python") as producer:
            producer.send("more", b"value", key=b"key").result(timeout=WAIT_S)
            producer.send("more", None).result(timeout=WAIT_S)
        with Reader(gateway.url, topics=["lines"], start=0) as reader:
            assert [(record.value or b"").decode() for record in reader.records()] == lines
        refused = node("send.mjs", "127.0.0.1", str(gateway.port), "a topic", "p", text="line\n")
        assert refused.returncode != 0
        assert "a topic" in refused.stderr
        wrong = node("send.mjs", "127.0.0.1", str(gateway.port + 3), "t", "p", text="line\n")
        assert wrong.returncode != 0
        assert "no gateway" in wrong.stderr or "ended the connection" in wrong.stderr
    read = node("read.mjs", str(gateway.data))
    assert read.returncode == 0, read.stderr
    found = [json.loads(line) for line in read.stdout.splitlines()]
    assert [record["offset"] for record in found] == list(range(len(lines) + 2))
    assert [record["value"] for record in found if record["topic"] == "lines"] == lines
    assert [(record["topic"], record["key"], record["value"]) for record in found[-2:]] == [
        ("more", "key", "value"),
        ("more", None, None),
    ]
