"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from tutti.common.gateway_url import DEFAULT_URL, DEFAULT_URL_USED
from tutti.errors import UsageError
from tutti.reading.range_bounds import Bound, parse_bound, parse_time

Function = TypeVar("Function", bound=Callable[..., object])


def url_option(function: Function) -> Function:
    """Add the option `--url` to a command. Its default is the `--url` of the command group, $TUTTI_URL, or `DEFAULT_URL`."""
    return _url(callback=lambda context, _option, url: resolve_url(context, url))(function)


def group_url_option(function: Function) -> Function:
    """Add the option `--url` to a command group, as the default for the commands of the group."""
    return _url()(function)


def resolve_url(context: click.Context, url: str | None) -> str:
    """Return the URL given to the command, else the one given to its group, else $TUTTI_URL, else `DEFAULT_URL`."""
    if url is None and context.parent is not None:
        url = context.parent.params.get("url")
    if url is None:
        url = os.environ.get("TUTTI_URL") or None
    if url is None:
        url, context.meta[DEFAULT_URL_USED] = DEFAULT_URL, True
    return url


def _url(**options: Any) -> Callable[[Function], Function]:
    text = f"One or more gateways: tutti://HOST:PORT[,HOST:PORT...]. Default: $TUTTI_URL, or {DEFAULT_URL}."
    return click.option("--url", metavar="URL", help=text, **options)


def json_option(function: Function) -> Function:
    """Add `--json`. The `--json` of a command group also holds for the commands of the group."""

    def inherited(context: click.Context, _option: click.Parameter, as_json: bool) -> bool:
        return as_json or (context.parent is not None and bool(context.parent.params.get("as_json")))

    return click.option("--json", "as_json", is_flag=True, callback=inherited, help="Report as one line of JSON.")(function)


class NumberRange(click.FloatRange):
    """Option type for a finite number in a range. click's own FloatRange also accepts NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert `value` to a number in the range, and reject NaN and infinity."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class _BoundType(click.ParamType[Bound]):
    name = "position"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Bound:
        if not isinstance(value, str):
            return value  # type: ignore[return-value]  # the value is the default, which is already a Bound
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
