"""`tutti spool`: what a producer's spool holds, and what it put aside."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tutti.errors import Damaged, FormatError, UsageError
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import bytes_text, counted, print_fields, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from tutti.spool.inspect import Damage


@click.command()
@click.argument("directory")
@click.option("--records", "shows_records", is_flag=True, help="Print records not known to be committed, one a line.")
@click.option(
    "--refused", "shows_refused", is_flag=True, help="Print the records that were put aside, one a line, with the reason."
)
@json_option
def spool(directory: str, shows_records: bool, shows_refused: bool, as_json: bool) -> None:
    """Show what a producer's spool holds, and check it.

    DIRECTORY is what the producer was given as its spool. It is looked at only; the producer may be running. Every record is
    read, and exit code 4 says that something cannot be. What can be read behind that is shown by --records, too.

    \b
    producer       whose it is
    log            uuid of the log that its records went to; empty until one left
    records        that are not known to be committed: the producer asks the log when it starts
    bytes          of these records
    refused        records that the log would not have, in files of the folder refused
    damage         what cannot be read

    Lines of --records and --refused are JSON as `tutti tail` writes it: topic, key, value, timestamp, headers; before them stands
    the place in the spool (segment, record), or the reason.
    """
    from tutti.data.frames.schema import decode_batch
    from tutti.spool.inspect import Damage, read_state, refused, walk

    if shows_records and shows_refused:
        raise UsageError("--records and --refused show one of both: give one of them")
    state = read_state(directory)
    records = size = count = 0
    damage: list[Damage] = []
    for path in refused(directory):
        try:
            for reason, batch in _refused(path):
                count += batch.num_rows
                if shows_refused:
                    _print_lines(batch, [reason] * batch.num_rows)
        except FormatError as error:
            damage.append(Damage(os.path.relpath(path, directory), 0, str(error)))
    if shows_refused:
        _check(directory, damage)
        return
    for one in walk(directory, state):
        if isinstance(one, Damage):
            damage.append(one)
            continue
        records += one.count
        size += len(one.body)
        if shows_records:
            numbers = range(one.before.records + 1, one.place.records + 1)
            places = [{"segment": one.place.segment, "record": number, "topic": one.topic} for number in numbers]
            _print_lines(decode_batch(one.body), places)
    told = {
        "producer": state.producer,
        "log": state.log,
        "records": records,
        "bytes": size,
        "refused": count,
        "damage": [one._asdict() for one in damage],
    }
    if not shows_records and as_json:
        print_json(told)
    elif not shows_records:
        whats = "; ".join(f"{one.file} from byte {one.at}: {one.why}" for one in damage)
        print_fields({**told, "bytes": bytes_text(size), "damage": whats or "none"})
    _check(directory, damage)


def _check(directory: str, damage: Sequence[Damage]) -> None:
    if damage:
        first = damage[0]
        many = counted(len(damage), "place")
        raise Damaged(
            f"{directory} is damaged in {many}, first in {first.file} from byte {first.at} ({first.why}): records there are lost "
            f"unless a copy has them. `tutti spool {directory} --records` prints the rest: send what the log does not have, and "
            "give the producer a new directory"
        )


def _refused(path: str) -> Iterator[tuple[dict[str, object], pa.RecordBatch]]:
    """The records of a file that were put aside, and why they were.

    Raises:
        FormatError: the file cannot be read from here on.
    """
    import pyarrow as pa

    try:
        with open(path, "rb") as file, pa.ipc.open_stream(file) as stream:
            told = {name.decode(): text.decode() for name, text in (stream.schema.metadata or {}).items()}
            for batch in stream:
                yield {"reason": told.get("reason"), "topic": told.get("topic")}, batch
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(str(error)) from error


def _print_lines(batch: pa.RecordBatch, before: Sequence[Mapping[str, object]]) -> None:
    """A line a record, each with some fields before its own."""
    import orjson

    from tutti.reading.json_lines import json_lines

    lines = [orjson.dumps({**first, **orjson.loads(line)}) for first, line in zip(before, json_lines(batch), strict=True)]
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
