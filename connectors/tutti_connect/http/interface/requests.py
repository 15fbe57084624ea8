"""What requests ask for, taken strictly: an unknown option is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tutti.errors import UsageError
from tutti.reading.positions import Bound, parse_bound
from tutti.sources.flight import check_name
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem

if TYPE_CHECKING:
    from starlette.datastructures import Headers

Query = Mapping[str, str]
_NOT_UTF_8 = "\N{REPLACEMENT CHARACTER}"  # what the framework puts where bytes are none


def query_of(pairs: Collection[tuple[str, str]], taken: Collection[str]) -> dict[str, str]:
    """The options of a request.

    Raises:
        Problem: 400: one is not known, comes twice, or is not UTF-8.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in taken:
            raise Problem(400, f"option {name[:80]!r} is not known here: there are {', '.join(taken) or 'none'}")
        if name in found:
            raise Problem(400, f"option {name} comes twice")
        if _NOT_UTF_8 in value:
            raise Problem(400, f"option {name} is not UTF-8: {value[:80]!r}")
        found[name] = value
    return found


def flag(query: Query, name: str, default: bool) -> bool:
    """True or false.

    Raises:
        Problem: 400: neither.
    """
    value = query.get(name)
    if value not in (None, "true", "false"):
        raise Problem(400, f"{name} is {value[:40]!r}: write true or false")
    return default if value is None else value == "true"


def number(query: Query, name: str, default: int, most: int) -> int:
    """A number from 1 on.

    Raises:
        Problem: 400: it is none.
    """
    value = query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= most):
        raise Problem(400, f"{name} is {value[:40]!r}: write a number from 1 to {most}")
    return int(value)


def bound(query: Query, name: str) -> Bound | None:
    """A place in the log; None where there is none.

    Raises:
        Problem: 400: it is no place.
    """
    if name not in query:
        return None
    text = query[name]
    try:
        found = parse_bound(text)
    except UsageError as error:
        raise Problem(400, f"{name}: {error}") from error
    if isinstance(found, int) and found >= 2**63:
        raise Problem(400, f"{name} is {text[:40]}, which no offset can be")
    return found


def topic_named(name: str) -> str:
    """A topic.

    Raises:
        Problem: 400: no topic can have that name.
    """
    try:
        return check_name("topic", name)
    except UsageError as error:
        raise Problem(400, str(error)) from error


def topics_of(query: Query) -> tuple[str, ...] | None:
    """The topics that are asked for; None is all.

    Raises:
        Problem: 400: one cannot be a topic.
    """
    if "topic" not in query:
        return None
    return tuple(topic_named(name) for name in query["topic"].split(","))


def single(headers: Headers, *names: str) -> dict[str, str]:
    """Those of the headers that are there.

    Raises:
        Problem: 400: one comes twice.
    """
    for name in names:
        if len(headers.getlist(name)) > 1:
            raise Problem(400, f"header {name.title()} comes {len(headers.getlist(name))} times: give it once")
    return {name: headers[name] for name in names if name in headers}


def producer_and_sequence(headers: Mapping[str, str]) -> tuple[str, int] | None:
    """Who posts, and the sequence of the first record; None for a post without protection against a repeat.

    Raises:
        Problem: 400: one is missing, or cannot be one.
    """
    name, sequence = headers.get("tutti-producer"), headers.get("tutti-sequence")
    if name is None and sequence is None:
        return None
    if name is None or sequence is None:
        raise Problem(400, "Tutti-Producer and Tutti-Sequence go together: give both, or none (then a repeat is a new post)")
    try:
        check_name("producer", name)
    except UsageError as error:
        raise Problem(400, f"Tutti-Producer: {error}") from error
    if len(name) > limits.PRODUCER_NAME_BYTES_MAX:
        raise Problem(400, f"Tutti-Producer has {len(name)} characters; at most {limits.PRODUCER_NAME_BYTES_MAX} are taken")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and 1 <= int(sequence) <= limits.SEQUENCE_MAX):
        raise Problem(400, f"Tutti-Sequence is {sequence[:40]!r}: it is the number of the post's first record, from 1")
    return name, int(sequence)
