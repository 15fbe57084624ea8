"""Static files of the console, which has no build step and loads nothing from other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from importlib import resources

from tutti_gateway.reads.admin.http import Page, PageResponse, QueryParameters

FOLDER = resources.files("tutti_gateway.reads.admin") / "console"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def table() -> Mapping[str, Page]:
    """Return the console's files by path; the path of `index.html` is `/`."""
    names = sorted(entry.name for entry in FOLDER.iterdir() if _type(entry.name))
    return {"/" if name == "index.html" else f"/console/{name}": partial(_file, name) for name in names}


def _file(name: str, _parameters: QueryParameters) -> PageResponse:
    """Return one file, read at each request. Few requests open the console, so a cache would save nothing."""
    # A browser must ask again at each use, or it would mix modules of two releases after an upgrade of the gateway.
    return PageResponse(HTTPStatus.OK, _type(name), (FOLDER / name).read_bytes(), {"cache-control": "no-cache"})


def _type(name: str) -> str:
    return _TYPES.get(name[name.rfind(".") :], "")
