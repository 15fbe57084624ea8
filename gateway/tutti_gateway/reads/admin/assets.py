"""The files of the console: a page without a build step, and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from importlib import resources

from tutti_gateway.reads.admin.http import Answer, Asked, Page

FOLDER = resources.files("tutti_gateway.reads.admin") / "console"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def table() -> Mapping[str, Page]:
    """The console's files by path; the page itself is `/`."""
    names = sorted(entry.name for entry in FOLDER.iterdir() if _type(entry.name))
    return {"/" if name == "index.html" else f"/console/{name}": partial(_file, name) for name in names}


def _file(name: str, _asked: Asked) -> Answer:
    """Read anew each time: who looks at it is a person."""
    return Answer(HTTPStatus.OK, _type(name), (FOLDER / name).read_bytes(), {"cache-control": "no-cache"})


def _type(name: str) -> str:
    return _TYPES.get(name[name.rfind(".") :], "")
