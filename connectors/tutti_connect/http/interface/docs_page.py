"""The page `/docs`: the table of operations as HTML, without scripts or external resources."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from html import escape

from tutti_connect.http.interface.openapi import ALWAYS
from tutti_connect.http.interface.operations import OPERATIONS, Operation

#: The browser must not load external resources or run scripts for this page.
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
h2 { font-size: 1.05em; margin: 2em 0 .3em } code, h2 b { font-family: ui-monospace, monospace } h2 b { color: #06c }
table { border-collapse: collapse; width: 100%; margin: .5em 0 }
td { border-top: 1px solid #ddd; padding: .25em .6em; vertical-align: top }
td:first-child { white-space: nowrap; font-family: ui-monospace, monospace } p { margin: .3em 0 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } h2 b { color: #6bf } td { border-color: #444 } }
"""


@functools.cache
def html() -> bytes:
    """Return the page `/docs` as HTML."""
    body = "\n".join(part for operation in OPERATIONS for part in _section(operation))
    always = _table((str(status), about) for status, about in ALWAYS.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tutti over HTTP</title><style>{_STYLE}</style></head><body>
<h1>Tutti over HTTP</h1>
<p>Posts commit to one globally ordered log; reads return its records.
Machine-readable form: <a href="/v1/openapi.json">/v1/openapi.json</a>.
Errors are JSON: <code>error</code>, <code>message</code>, and <code>where</code> (record, line, column, field).</p>
{body}
<h2>Any request may be answered with</h2>
{always}
</body></html>
""".encode()


def _section(operation: Operation) -> Iterator[str]:
    yield f"<h2><b>{operation.method}</b> <code>{escape(operation.path)}</code></h2>"
    yield f"<p>{escape(operation.summary)}. {escape(operation.about)}</p>"
    rows = [(one.name, f"{one.where}: {one.about}") for one in operation.parameters]
    if operation.bodies:
        rows.append(("body", ", ".join(operation.bodies)))
    if rows:
        yield _table(rows)
    yield _table((str(status), about) for status, about in operation.answers.items())


def _table(rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(about)}</td></tr>" for name, about in rows)
    return f"<table>{cells}</table>"
