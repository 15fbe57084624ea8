"""OpenAPI 3.1 description of the interface, generated from the table of operations and the record types."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import orjson

from tutti_connect.http.interface.operations import OPERATIONS, Operation
from tutti_connect.http.produce.bodies import JSON, Record

#: Answers that any request may get.
ALWAYS = {
    401: "The token is missing or unknown.",
    403: "The token does not allow this operation.",
    408: "The request did not arrive in time.",
    429: "Too many requests are in progress: retry after Retry-After.",
    503: "No majority of the group answers: retry after Retry-After. `committed` gives the known outcome of a post.",
}


@functools.cache
def description() -> bytes:
    """Return the description as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Tutti over HTTP",
            "version": "1",
            "description": "Posts commit to one globally ordered log; reads return its records. Errors are JSON (Problem).",
        },
        "paths": paths,
        "components": {"schemas": schemas(), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
    return orjson.dumps(document)


def schemas() -> dict[str, Any]:
    """Return the schemas, by name."""
    (_, found) = msgspec.json.schema_components([Record], ref_template="#/components/schemas/{name}")
    text, number, nothing = {"type": "string"}, {"type": "integer"}, {"type": "null"}
    outcome = {
        "topic": text,
        "offset": {"anyOf": [number, nothing], "description": "offset of the first record; null if only the offset is unknown"},
        "count": number,
        "producer": text,
        "sequence": number,
        "repeated": {"type": "boolean", "description": "true if the post was already committed"},
    }
    where = dict.fromkeys(("record", "line", "column"), number) | {"field": text}
    problem = {
        "error": text,
        "message": text,
        "where": {"type": "object", "properties": where},
        "expected": number,
        "conflict": {"enum": ["gap", "overlap", "different", "unverified", "foreign"]},
        "committed": {"enum": ["no", "unknown"]},
    }
    receipt = {"id": text, "state": {"enum": ["pending", "committed", "failed"]}}
    return {
        **found,
        "Outcome": {"type": "object", "properties": outcome, "required": ["topic", "offset", "count"]},
        "Problem": {"type": "object", "properties": problem, "required": ["error", "message"]},
        "Receipt": {"type": "object", "properties": receipt, "required": ["id", "state"]},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    answers = {str(status): _answer(operation, status, about) for status, about in operation.answers.items()}
    if not operation.open:
        answers |= {str(status): _answer(operation, status, about) for status, about in ALWAYS.items()}
    document: dict[str, Any] = {"summary": operation.summary, "operationId": operation.handler, "responses": answers}
    if operation.about:
        document["description"] = operation.about
    if operation.parameters:
        document["parameters"] = [
            {"name": one.name, "in": one.where, "description": one.about, "schema": one.schema, "required": one.required}
            for one in operation.parameters
        ]
    if operation.bodies:
        document["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schema} for kind, schema in operation.bodies.items()},
        }
    document["security"] = [{}] if operation.open else [{"token": []}, {}]
    return document


def _answer(operation: Operation, status: int, about: str) -> dict[str, Any]:
    if status >= 400:
        return {"description": about, "content": {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    schema = operation.answer if operation.media == (JSON,) else {"type": "string"}
    return {"description": about, "content": {media: {"schema": schema} for media in operation.media}}
