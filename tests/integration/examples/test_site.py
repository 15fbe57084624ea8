"""Tests of the documentation site: it builds strictly, every page exists, every link resolves, and no page loads
from other hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` does with the pages."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    return subprocess.run(
        command, cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    place = tmp_path_factory.mktemp("site")
    done = build(ROOT, place)
    assert done.returncode == 0, done.stderr
    return place


def test_every_page_is_there(site: Path) -> None:
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 10
    built = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    assert {name for name in built if not name.startswith("files/")} == pages - {"README"} | {"index", "pages", "404"}
    assert "Atomic multicast as the front door of Spark" in (site / "index.html").read_text("utf-8")
    assert (site / "files/conf/gateway.toml").read_bytes() == (ROOT / "conf/gateway.toml").read_bytes()


class Addresses(HTMLParser):
    """Collects the addresses that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe") or (tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "preload")):
            self.fetched += [address for name in ("src", "href") if (address := given.get(name))]


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    parser = Addresses()
    for page in site.rglob("*.html"):
        parser.feed(page.read_text("utf-8"))
    assert parser.fetched
    assert [address for address in parser.fetched if re.match(r"(?:[a-z]+:)?//", address)] == []


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    """Builds with one page that has a wrong link, a wrong file beside the docs, and a wrong anchor."""
    for name in ("mkdocs.yml", "tools/site.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    settings = re.sub(r"^nav:.*", "", (tmp_path / "mkdocs.yml").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# First\n\n[second](docs/second.md)\n")
    (tmp_path / "docs/second.md").write_text(
        "# Second\n\n[a](none.md) [b](../conf/none.toml) [c](../README.md#none) [d](../README.md)\n"
    )
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "Aborted with 3 warnings in strict mode" in done.stderr + done.stdout
    assert all(word in done.stderr for word in ("none.md", "conf/none.toml", "#none"))
