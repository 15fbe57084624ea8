"""Strict parsing of request options: an unknown option is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tutti.data.names import check_name
from tutti.errors import UsageError
from tutti.reading.range_bounds import Bound, parse_bound
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem

if TYPE_CHECKING:
    from starlette.datastructures import Headers

Query = Mapping[str, str]
_NOT_UTF_8 = "\N{REPLACEMENT CHARACTER}"  # character to which Starlette decodes invalid UTF-8


def query_of(pairs: Collection[tuple[str, str]], options: Collection[str]) -> dict[str, str]:
    """Return the query options of a request.

    Raises:
        Problem: 400: an option is unknown, repeated, or not UTF-8.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in options:
            raise Problem(400, f"option {name[:80]!r} is unknown: the options are {', '.join(options) or 'none'}")
        if name in found:
            raise Problem(400, f"option {name} is given twice")
        if _NOT_UTF_8 in value:
            raise Problem(400, f"option {name} is not UTF-8: {value[:80]!r}")
        found[name] = value
    return found


def flag(query: Query, name: str, default: bool) -> bool:
    """Return a boolean option.

    Raises:
        Problem: 400: the value is neither true nor false.
    """
    value = query.get(name)
    if value not in (None, "true", "false"):
        raise Problem(400, f"{name} is {value[:40]!r}: write true or false")
    return default if value is None else value == "true"


def number(query: Query, name: str, default: int, most: int) -> int:
    """Return a number option, from 1 to `most`.

    Raises:
        Problem: 400: the value is not a number from 1 to `most`.
    """
    value = query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= most):
        raise Problem(400, f"{name} is {value[:40]!r}: write a number from 1 to {most}")
    return int(value)


def bound(query: Query, name: str) -> Bound | None:
    """Return an option that is a position in the log, or None if the request lacks the option.

    Raises:
        Problem: 400: the value is not a position in the log.
    """
    if name not in query:
        return None
    text = query[name]
    try:
        found = parse_bound(text)
    except UsageError as error:
        raise Problem(400, f"{name}: {error}") from error
    if isinstance(found, int) and found >= 2**63:
        raise Problem(400, f"{name} is {text[:40]}, which exceeds the largest offset")
    return found


def topic_named(name: str) -> str:
    """Return a valid topic name.

    Raises:
        Problem: 400: the name is invalid.
    """
    try:
        return check_name("topic", name)
    except UsageError as error:
        raise Problem(400, str(error)) from error


def topics_of(query: Query) -> tuple[str, ...] | None:
    """Return the requested topics, None for all.

    Raises:
        Problem: 400: a topic name is invalid.
    """
    if "topic" not in query:
        return None
    return tuple(topic_named(name) for name in query["topic"].split(","))


def single(headers: Headers, *names: str) -> dict[str, str]:
    """Return those of the headers `names` that the request has.

    Raises:
        Problem: 400: a header is repeated.
    """
    for name in names:
        if len(headers.getlist(name)) > 1:
            raise Problem(400, f"header {name.title()} is given {len(headers.getlist(name))} times: give it once")
    return {name: headers[name] for name in names if name in headers}


def producer_and_sequence(headers: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the producer name and the sequence of the post's first record, or None if the request has neither header.

    Raises:
        Problem: 400: only one of the two headers is present, or a header is invalid.
    """
    name, sequence = headers.get("tutti-producer"), headers.get("tutti-sequence")
    if name is None and sequence is None:
        return None
    if name is None or sequence is None:
        raise Problem(400, "Tutti-Producer and Tutti-Sequence belong together: give both, or neither (then a repeat is a new post)")
    try:
        check_name("producer", name)
    except UsageError as error:
        raise Problem(400, f"Tutti-Producer: {error}") from error
    if len(name) > limits.PRODUCER_NAME_BYTES_MAX:
        raise Problem(400, f"Tutti-Producer has {len(name)} characters; at most {limits.PRODUCER_NAME_BYTES_MAX} are allowed")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and 1 <= int(sequence) <= limits.SEQUENCE_MAX):
        raise Problem(400, f"Tutti-Sequence is {sequence[:40]!r}: give the number of the post's first record, from 1")
    return name, int(sequence)
