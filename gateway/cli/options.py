"""Options that several commands share, and what turns their text into values."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from gateway.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., object])

_OFFSET = re.compile(r"[0-9]+\Z")
_WORDS = ("earliest", "latest")
#: A range's end as users write it: an offset, earliest, latest or an aware time.
Bound = int | str | datetime


def url_option(function: Function) -> Function:
    """`--url`, by default from $TUTTI_URL, or from the group of commands that this one belongs to."""
    return _url(callback=lambda context, _option, url: needed_url(context, url))(function)


def group_url_option(function: Function) -> Function:
    """`--url` of a group of commands: its commands may do without one of their own."""
    return _url()(function)


def needed_url(context: click.Context, url: str | None) -> str | None:
    """The url that was given, to the command or to its group.

    Raises:
        click.UsageError: none was.
    """
    if url is None and context.parent is not None:
        url = context.parent.params.get("url")
    if url is None and not context.resilient_parsing:
        raise click.UsageError("no gateway is named: give --url tutti://HOST:PORT or set TUTTI_URL", context)
    return url


def _url(**options: Any) -> Callable[[Function], Function]:
    text = "A gateway or several: tutti://HOST:PORT[,HOST:PORT...] ($TUTTI_URL by default)."
    return click.option("--url", envvar="TUTTI_URL", metavar="URL", help=text, **options)


def json_option(function: Function) -> Function:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Report as one line of JSON.")(function)


def parse_time(text: str) -> datetime:
    """An aware datetime from ISO 8601 text with a zone.

    Raises:
        UsageError: it is no such text.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: write ISO 8601 with a zone, for example 2026-01-31T12:00:00Z") from None
    if time.tzinfo is None:
        raise UsageError(f"the time {text!r} has no zone: add Z for UTC, or an offset such as +01:00")
    return time.astimezone(UTC)


def parse_bound(text: str) -> Bound:
    """Where a range starts or ends: an offset, "earliest", "latest", or an ISO 8601 time with a zone.

    Raises:
        UsageError: it is none of these.
    """
    if _OFFSET.match(text):
        return int(text)
    if text in _WORDS:
        return text
    if text[:1].isdigit() and "-" in text:
        return parse_time(text)
    raise UsageError(
        f"{text!r} is no place in the log: write an offset (0, 1, 2, ...), earliest, latest, or an ISO 8601 time with a zone"
    )


class _BoundType(click.ParamType[Bound]):
    name = "place"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Bound:
        if not isinstance(value, str):
            return value  # type: ignore[return-value]  # click hands defaults over as they are
        try:
            return parse_bound(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _TimeType(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return parse_time(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


BOUND = _BoundType()
TIME = _TimeType()
