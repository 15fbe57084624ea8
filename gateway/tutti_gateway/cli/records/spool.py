"""`tutti spool`: shows and checks the contents of a producer's spool."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tutti.errors import Damaged, FormatError, UsageError
from tutti_gateway.cli.common.names import complete_directory
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import bytes_text, count_text, print_fields, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from tutti.spool.inspect import CorruptPart


@click.command()
@click.argument("directory", shell_complete=complete_directory)
@click.option("--records", "shows_records", is_flag=True, help="Print each record that may be uncommitted as one line.")
@click.option("--refused", "shows_refused", is_flag=True, help="Print each dead-lettered record as one line, with the reason.")
@json_option
def spool(directory: str, shows_records: bool, shows_refused: bool, as_json: bool) -> None:
    """Show and check the contents of a producer's spool.

    DIRECTORY is the producer's spool directory. The command changes nothing, and the producer can run at the same time. The command
    reads every record, and ends with exit code 4 if a part of the spool is unreadable. With --records, it also shows readable
    records after an unreadable part.

    \b
    producer       name of the producer
    log            uuid of the log that receives the records; empty before the first record
    records        records that may be uncommitted; the producer asks the log when it starts
    bytes          size of these records
    refused        records that the log rejected, kept in files of the folder refused
    damage         unreadable parts

    --records and --refused print JSON lines as `tutti tail` does, with topic, key, value, timestamp and headers. With --records, a
    line begins with the record's position in the spool (segment, record). With --refused, a line begins with the reason.
    """
    from tutti.data.frames.schema import decode_batch
    from tutti.spool.inspect import CorruptPart, read_state, refused, scan_blocks

    if shows_records and shows_refused:
        raise UsageError("--records and --refused exclude each other: give one of them")
    state = read_state(directory)
    records = size = count = 0
    damage: list[CorruptPart] = []
    for path in refused(directory):
        try:
            for reason, batch in _dead_letters(path):
                count += batch.num_rows
                if shows_refused:
                    _print_lines(batch, [reason] * batch.num_rows)
        except FormatError as error:
            damage.append(CorruptPart(os.path.relpath(path, directory), 0, str(error)))
    if shows_refused:
        _check(directory, damage)
        return
    for part in scan_blocks(directory, state):
        if isinstance(part, CorruptPart):
            damage.append(part)
            continue
        records += part.count
        size += len(part.body)
        if shows_records:
            numbers = range(part.before.records + 1, part.position.records + 1)
            positions = [{"segment": part.position.segment, "record": number, "topic": part.topic} for number in numbers]
            _print_lines(decode_batch(part.body), positions)
    summary = {
        "producer": state.producer,
        "log": state.log,
        "records": records,
        "bytes": size,
        "refused": count,
        "damage": [part._asdict() for part in damage],
    }
    if not shows_records and as_json:
        print_json(summary)
    elif not shows_records:
        corruption = "; ".join(f"{part.file} from byte {part.at}: {part.why}" for part in damage)
        print_fields({**summary, "bytes": bytes_text(size), "damage": corruption or "none"})
    _check(directory, damage)


def _check(directory: str, damage: Sequence[CorruptPart]) -> None:
    if damage:
        first = damage[0]
        many = count_text(len(damage), "place")
        raise Damaged(
            f"{directory} is corrupt in {many}, first in {first.file} from byte {first.at} ({first.why}). Records there are lost "
            f"unless a copy has them. Print the readable records with `tutti spool {directory} --records`, send those that the log "
            "lacks, and give the producer a new directory"
        )


def _dead_letters(path: str) -> Iterator[tuple[dict[str, object], pa.RecordBatch]]:
    """Yield the batches of a dead-letter file, each with its topic and the reason why the log rejected it.

    Raises:
        FormatError: the file cannot be read further; raised after all batches before the unreadable part.
    """
    import pyarrow as pa

    try:
        with open(path, "rb") as file, pa.ipc.open_stream(file) as stream:
            summary = {name.decode(): text.decode() for name, text in (stream.schema.metadata or {}).items()}
            for batch in stream:
                yield {"reason": summary.get("reason"), "topic": summary.get("topic")}, batch
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(str(error)) from error


def _print_lines(batch: pa.RecordBatch, before: Sequence[Mapping[str, object]]) -> None:
    """Print each record of a batch as one line of JSON. `before` has, for each record, the fields with which the line begins."""
    import orjson

    from tutti.reading.json_lines import json_lines

    lines = [orjson.dumps({**first, **orjson.loads(line)}) for first, line in zip(before, json_lines(batch), strict=True)]
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
