"""What can be asked, in one table: the application takes its routes from it, `/v1/openapi.json` and `/docs` what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tutti.data.names import NAME_BYTES_MAX
from tutti_connect.http import limits
from tutti_connect.http.produce.bodies import ARROW, JSON, NDJSON

EVENTS, METRICS = "text/event-stream", "text/plain"
Schema = Mapping[str, Any]
_TEXT: Schema = {"type": "string"}
_TOPIC: Schema = {"type": "string", "pattern": f"^[A-Za-z0-9._-]{{1,{NAME_BYTES_MAX}}}$"}
_OBJECT: Schema = {"type": "object"}
_FLAG: Schema = {"type": "boolean"}
_PLACE: Schema = {"type": "string", "examples": ["0", "earliest", "latest", "2026-01-31T12:00:00Z"]}


class Parameter(NamedTuple):
    """What goes with a request; `where` is path, query or header."""

    name: str
    where: str
    about: str
    schema: Schema = _TEXT
    required: bool = False


class Operation(NamedTuple):
    """One thing that can be asked.

    Attributes:
        method, path: of the request.
        handler: name of the method of `Service` that answers it.
        summary, about: one line, and the rest.
        parameters: those of the query are all that are taken.
        bodies: content type -> schema of what is sent.
        answers: status -> what it means; those that any request may get are left out.
        media: content types of the good answer.
        answer: schema of that, where it is JSON.
        open: whether it is answered without a token.
    """

    method: str
    path: str
    handler: str
    summary: str
    about: str = ""
    parameters: tuple[Parameter, ...] = ()
    bodies: Mapping[str, Schema] = {}
    answers: Mapping[int, str] = {}
    media: tuple[str, ...] = (JSON,)
    answer: Schema = _OBJECT
    open: bool = False


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TOPICS = Parameter(
    "topic", "query", "Only records of this topic; several separated by commas. Without it all that the token may read.", _TEXT
)
_KEY = Parameter("key", "query", "Only records with this key (text).")
_RECORD, _OUTCOME, _LINES = _ref("Record"), _ref("Outcome"), {"type": "string", "description": "one record a line"}

OPERATIONS = (
    Operation(
        "POST",
        "/v1/topics/{topic}/records",
        "post",
        "Commit records, all of a post or none",
        "The records get consecutive offsets, in the order of the body. With Tutti-Producer and Tutti-Sequence a post that is "
        "repeated, at whichever process, commits nothing twice and is answered with the first result; without them a repeat is a "
        "new post.",
        (
            Parameter("topic", "path", "Made when it is first used.", _TOPIC, True),
            Parameter("wait", "query", "false: do not wait for the outcome; 202 with an id to ask for.", _FLAG),
            Parameter("plain", "query", f"true: each line of {NDJSON} is a value itself, byte for byte.", _FLAG),
            Parameter("Tutti-Producer", "header", "Who posts: a name of the caller's choice.", _TEXT),
            Parameter(
                "Tutti-Sequence",
                "header",
                "Number of the first record of the post among all records of this producer, from 1.",
                {"type": "integer", "minimum": 1},
            ),
        ),
        {
            JSON: {"oneOf": [_RECORD, {"type": "array", "items": _RECORD}]},
            NDJSON: _LINES,
            ARROW: {"type": "string", "format": "binary"},
        },
        {
            200: "They are committed: on the disk of every gateway of the view.",
            202: "They are on their way.",
            400: "A record cannot be one; nothing of the post is committed.",
            409: "The sequence leaves a gap, or overlaps what is committed: `expected` is the next.",
            413: "The body, a record or what they become is too large.",
            415: "Another content type.",
            422: "The gateways refuse it.",
        },
        answer=_OUTCOME,
    ),
    Operation(
        "GET",
        "/v1/receipts/{id}",
        "receipt",
        "What became of a post that did not wait",
        f"Kept in memory for {limits.RECEIPT_S:g} s after the outcome, by the process that took the post.",
        (Parameter("id", "path", "As the post was answered.", _TEXT, True),),
        answers={200: "What is known of it: pending, committed or failed.", 404: "This process knows nothing of it."},
        answer=_ref("Receipt"),
    ),
    Operation(
        "GET",
        "/v1/producers/{producer}",
        "producer",
        "The sequence that a producer's next post begins with",
        "For who starts again. It begins an epoch of the producer.",
        (Parameter("producer", "path", "As in Tutti-Producer.", _TEXT, True),),
        answers={200: "`expected` is the next sequence."},
    ),
    Operation(
        "GET",
        "/v1/records",
        "records",
        "Committed records of a range, in offset order",
        "Where a page ends before the range does, Link (rel=next) and Tutti-Next say where to go on; a page may be empty.",
        (
            Parameter("start", "query", "First offset: a number, earliest (default), latest, or a time.", _PLACE),
            Parameter("end", "query", "The offset to stop before; what is committed now by default.", _PLACE),
            _TOPICS,
            _KEY,
            Parameter(
                "limit",
                "query",
                f"At most so many records ({limits.PAGE_RECORDS}).",
                {"type": "integer", "minimum": 1, "maximum": limits.PAGE_RECORDS_MAX},
            ),
        ),
        answers={200: "A page.", 406: "Accept names neither.", 416: "The range lies outside of the log."},
        media=(NDJSON, ARROW),
    ),
    Operation(
        "GET",
        "/v1/records/stream",
        "stream",
        "Records as they commit, as server-sent events",
        "The id of an event is the offset; Last-Event-ID continues after it. The first id is the one before the start.",
        (
            Parameter("start", "query", "First offset, as above; latest by default.", _PLACE),
            _TOPICS,
            _KEY,
            Parameter("Last-Event-ID", "header", "Goes before `start`.", {"type": "integer", "minimum": -1}),
        ),
        answers={200: "Events until the caller goes away.", 416: "The start lies outside of the log."},
        media=(EVENTS,),
    ),
    Operation(
        "GET", "/v1/topics", "topics", "The topics that may be read", answers={200: "Topics with counts, offsets and times."}
    ),
    Operation("GET", "/v1/openapi.json", "openapi", "This description", answers={200: "OpenAPI 3.1."}, open=True),
    Operation("GET", "/docs", "docs", "This description, to be read", answers={200: "A page."}, media=("text/html",), open=True),
    Operation("GET", "/healthz", "healthz", "Whether the process works", answers={200: "It does."}, open=True),
    Operation(
        "GET",
        "/readyz",
        "readyz",
        "Whether posts can be committed",
        answers={200: "They can.", 503: "They cannot, and why."},
        open=True,
    ),
    Operation("GET", "/metrics", "metrics_page", "For Prometheus", answers={200: "All families."}, media=(METRICS,)),
)
