"""Table of the HTTP operations, from which the connector makes its routes, `/v1/openapi.json` and `/docs`."""

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
    """A parameter of a request; `where` is path, query or header."""

    name: str
    where: str
    about: str
    schema: Schema = _TEXT
    required: bool = False


class Operation(NamedTuple):
    """One operation of the HTTP interface: a method on a path.

    Attributes:
        method, path: method and path of the request.
        handler: name of the method of `Service` that answers the request.
        summary, about: description in one line, and further sentences.
        parameters: parameters in the path, in the query (all that are accepted) and in headers.
        bodies: content type -> schema of the request body.
        answers: status -> meaning; answers that any request may get are omitted.
        media: content types of the successful answer.
        answer: schema of the successful answer, if JSON.
        open: True if the operation needs no token.
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
    "topic", "query", "Only records of this topic; separate several by commas. Default: all topics that the token may read.", _TEXT
)
_KEY = Parameter("key", "query", "Only records with this key (text).")
_RECORD, _OUTCOME, _LINES = _ref("Record"), _ref("Outcome"), {"type": "string", "description": "one record on each line"}

OPERATIONS = (
    Operation(
        "POST",
        "/v1/topics/{topic}/records",
        "post",
        "Commit records, all records of a post or none",
        "The records get consecutive offsets, in the order of the body. With Tutti-Producer and Tutti-Sequence, a repeated post "
        "commits nothing twice, at any process, and returns the first result; without them, a repeat is a "
        "new post.",
        (
            Parameter("topic", "path", "Created at its first use.", _TOPIC, True),
            Parameter("wait", "query", "false: do not wait for the outcome; the answer is 202 with the id of a receipt.", _FLAG),
            Parameter("plain", "query", f"true: each line of {NDJSON} is a value itself, byte for byte.", _FLAG),
            Parameter("Tutti-Producer", "header", "Name of the producer, chosen by the caller.", _TEXT),
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
            200: "The records are committed: on the disk of every gateway of the view.",
            202: "The records are accepted, and not committed yet.",
            400: "A record is invalid; nothing of the post is committed.",
            409: "The sequence leaves a gap, or overlaps committed records: `expected` is the next sequence.",
            413: "The body, a record or the converted frame is too large.",
            415: "The content type is not supported.",
            422: "The gateways reject the post.",
        },
        answer=_OUTCOME,
    ),
    Operation(
        "GET",
        "/v1/receipts/{id}",
        "receipt",
        "The outcome of a post that did not wait",
        f"Kept in memory for {limits.RECEIPT_S:g} s after the outcome, by the process that took the post.",
        (Parameter("id", "path", "Id from the answer to the post.", _TEXT, True),),
        answers={200: "State of the post: pending, committed or failed.", 404: "This process has no such receipt."},
        answer=_ref("Receipt"),
    ),
    Operation(
        "GET",
        "/v1/producers/{producer}",
        "producer",
        "The first sequence of a producer's next post",
        "For a restarted caller. The request starts an epoch of the producer.",
        (Parameter("producer", "path", "As in Tutti-Producer.", _TEXT, True),),
        answers={200: "`expected` is the next sequence."},
    ),
    Operation(
        "GET",
        "/v1/records",
        "records",
        "Committed records of a range, in offset order",
        "If a page ends before the range, Link (rel=next) and Tutti-Next give the next start; a page may be empty.",
        (
            Parameter("start", "query", "First offset: a number, earliest (default), latest, or a time.", _PLACE),
            Parameter("end", "query", "Offset after the last record; default: the frontier.", _PLACE),
            _TOPICS,
            _KEY,
            Parameter(
                "limit",
                "query",
                f"Maximum number of records (default {limits.PAGE_RECORDS}).",
                {"type": "integer", "minimum": 1, "maximum": limits.PAGE_RECORDS_MAX},
            ),
        ),
        answers={200: "A page.", 406: "Accept has no supported format.", 416: "The range is outside the log."},
        media=(NDJSON, ARROW),
    ),
    Operation(
        "GET",
        "/v1/records/stream",
        "stream",
        "Records as they commit, as server-sent events",
        "The id of an event is the offset; Last-Event-ID continues after it. The first id is the offset before the start.",
        (
            Parameter("start", "query", "First offset, as in /v1/records; default: latest.", _PLACE),
            _TOPICS,
            _KEY,
            Parameter("Last-Event-ID", "header", "Takes precedence over `start`.", {"type": "integer", "minimum": -1}),
        ),
        answers={200: "Events until the caller disconnects.", 416: "The start is outside the log."},
        media=(EVENTS,),
    ),
    Operation(
        "GET", "/v1/topics", "topics", "The topics that the token may read", answers={200: "Topics with counts, offsets and times."}
    ),
    Operation("GET", "/v1/openapi.json", "openapi", "This description", answers={200: "OpenAPI 3.1."}, open=True),
    Operation("GET", "/docs", "docs", "This description as a page", answers={200: "A page."}, media=("text/html",), open=True),
    Operation("GET", "/healthz", "healthz", "Whether the process answers", answers={200: "The process answers."}, open=True),
    Operation(
        "GET",
        "/readyz",
        "readyz",
        "Whether posts can be committed",
        answers={200: "Posts can be committed.", 503: "Posts cannot be committed; the answer has the reason."},
        open=True,
    ),
    Operation("GET", "/metrics", "metrics_page", "Metrics for Prometheus", answers={200: "All metric families."}, media=(METRICS,)),
)
