"""Builds the site of docs/ from the checkout's own links: a hook of mkdocs.yml.

The root's README.md becomes the first page and docs/README.md the page `pages.md`, since mkdocs would name both `index.html`.
Files outside docs/ that pages link to (examples, configurations, the changelog) are copied below `files/`. Links are rewritten to
match, so the pages work in the checkout and on the site, and the strict build checks every link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, ELSEWHERE, FIRST = "docs/", "files/", "README.md"
PLACES = {FIRST: "index.md", "docs/README.md": "pages.md"}
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_ADDRESS = re.compile(r"[a-z]+:")
_FENCE = re.compile(r"^\s*```")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add both indexes, and all that is linked to, from there too."""
    waiting = [FIRST, *(DOCS + file.src_uri for file in files if file.src_uri.endswith(".md"))]
    if index := files.get_file_from_path("README.md"):
        files.remove(index)
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if path in PLACES or not path.startswith(DOCS):
            files.append(File.generated(config, _place(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            fresh = {target for target in _targets(path) if (ROOT / target).is_file()} - seen
            seen |= fresh
            waiting += sorted(target for target in fresh if not target.startswith(DOCS))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page, and set lists off as Markdown's first form wants it."""
    own = page.file.src_uri
    path = _path(own)

    def turned(found: re.Match[str]) -> str:
        target = found[2]
        if _ADDRESS.match(target):
            return found[0]
        place = _place(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        return found[1] + posixpath.relpath(place, posixpath.dirname(own) or ".") + found[3]

    return "\n".join(_set_off(_LINK.sub(turned, markdown).splitlines()))


def _targets(path: str) -> Iterator[str]:
    for found in _LINK.finditer((ROOT / path).read_text("utf-8")):
        if not _ADDRESS.match(found[2]):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))


def _place(path: str) -> str:
    """Where a file of the checkout is on the site."""
    if path in PLACES:
        return PLACES[path]
    return path.removeprefix(DOCS) if path.startswith(DOCS) else ELSEWHERE + path


def _path(place: str) -> str:
    """The file of the checkout that is there on the site."""
    for path, own in PLACES.items():
        if place == own:
            return path
    return place.removeprefix(ELSEWHERE) if place.startswith(ELSEWHERE) else DOCS + place


def _set_off(lines: list[str]) -> Iterator[str]:
    """A list that begins right behind a line of text gets an empty line before it."""
    fenced, listed, before = False, False, ""
    for line in lines:
        if _FENCE.match(line):
            fenced = not fenced
        item = not fenced and bool(_ITEM.match(line))
        if item and before.strip() and not listed:
            yield ""
        listed = item or (listed and bool(line.strip()))
        before = line
        yield line
