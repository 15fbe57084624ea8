"""`tutti topics`: lists topics, describes one, or creates one before its first record."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

from tutti.errors import UsageError
from tutti.reading.range_bounds import time_text
from tutti_gateway.cli.common.gateways import await_gateway, change_client
from tutti_gateway.cli.common.names import complete_topic
from tutti_gateway.cli.common.options import group_url_option, json_option, resolve_url, url_option
from tutti_gateway.cli.common.output import note, print_fields, print_json, print_table

if TYPE_CHECKING:
    from tutti.sources.source import Topic

_COLUMNS = ("name", "records", "bytes", "first_offset", "last_offset", "first_time", "last_time")
_DELETIONS = ("delete", "drop", "remove", "rm")  # what users of other systems type
_NAMES_MAX = 10  # number of topics that an error lists


class _Topics(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the name of a subcommand, but explain why topics have no command for deletion."""
        if args[0] in _DELETIONS and not ctx.resilient_parsing:  # a completion in a shell must not print an error
            raise UsageError(
                f"tutti topics {args[0]}: a topic cannot be deleted, because all topics share one log. To remove old records of "
                "all topics, set [retention] in the configuration of the gateways; `tutti topics --help` lists the commands"
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Topics, invoke_without_command=True)
@group_url_option
@json_option
@click.pass_context
def topics(context: click.Context, url: str | None, as_json: bool) -> None:
    """List, describe or create topics.

    Without a subcommand, list them. A topic cannot be deleted, because all topics share one log. `[retention]` in the configuration
    of the gateways removes old records of all topics, and the names of the topics remain.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_topics, url=resolve_url(context, url), as_json=as_json)


@topics.command("list")
@url_option
@json_option
def list_topics(url: str, as_json: bool) -> None:
    """List topics with counts, first and last offset and time.

    Records and bytes are totals since the log began. Bytes are the size of the batches as the producers sent them, with framing and
    after compression. The first offset is that of the oldest record that retention has kept. The numbers cover the ordered log
    only, so a topic with only unordered records has 0 records. With a token, the command shows the topics that the token may read.
    The command warns if no gateway can confirm with a majority that the list is complete.
    """
    found = [_fields(topic) for topic in _topics(url)]
    if as_json:
        print_json(found)
    else:
        print_table(_COLUMNS, [[topic[name] for name in _COLUMNS] for topic in found], empty="no topics")


@topics.command()
@click.argument("name", shell_complete=complete_topic)
@url_option
@json_option
def describe(name: str, url: str, as_json: bool) -> None:
    """Show one topic: counts, first and last offset and time.

    `tutti topics list --help` explains the fields. The exit code is 2 if no topic has this name.
    """
    found = {topic.name: topic for topic in _topics(url)}
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        names = f"the topics are {', '.join(sorted(found)[:_NAMES_MAX])}{', ...' if len(found) > _NAMES_MAX else ''}"
        hint = f"did you mean {near[0]!r}?" if near else names if found else "the log has no topics, or the token may read none"
        raise UsageError(f"no topic is named {name!r}: {hint}")
    (print_json if as_json else print_fields)(_fields(found[name]))


@topics.command()
@click.argument("name")
@url_option
@json_option
def create(name: str, url: str, as_json: bool) -> None:
    """Create a topic before its first record.

    A producer creates a topic with its first record, so this command is needed only for readers and queries that start earlier. If
    the topic exists, the command changes nothing and ends with exit code 0. With a token, the command needs the right to write to
    the topic. A token that may not read the topic does not show whether the topic existed before.
    """
    from tutti.data.names import check_name

    check_name("topic", name)
    existed = any(topic.name == name for topic in _topics(url))
    with change_client(url) as (control, _):
        control.open_topic(name)
    if as_json:
        print_json({"name": name, "existed": existed})
    else:
        note(f"topic {name} exists already" if existed else f"topic {name} now exists")


def _topics(url: str) -> list[Topic]:
    """Return the topics of the log, after the log has begun."""
    from tutti.sources.flight import FlightSource
    from tutti.sources.source import wait_for_log

    await_gateway(url)
    with FlightSource(url) as reads:
        wait_for_log(reads)
        return reads.topics()


def _fields(topic: Topic) -> dict[str, object]:
    """Return the fields of a topic. Offsets and times are None if the log holds no record of the topic."""
    has_records = topic.first_offset >= 0
    return {
        "name": topic.name,
        "records": topic.records,
        "bytes": topic.bytes,
        "first_offset": topic.first_offset if has_records else None,
        "last_offset": topic.last_offset if has_records else None,
        "first_time": time_text(topic.first_time_us) if has_records else None,
        "last_time": time_text(topic.last_time_us) if has_records else None,
    }
