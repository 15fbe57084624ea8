"""`tutti replay`: writes a range of committed records to a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tutti.common.gateway_url import DEFAULT_URL
from tutti.errors import ConfigError, TuttiError, UsageError, remedy
from tutti.reading.range_bounds import Bound
from tutti_gateway.cli.common.gateways import await_gateway
from tutti_gateway.cli.common.names import complete_directory, complete_topic
from tutti_gateway.cli.common.options import BOUND, json_option, resolve_url
from tutti_gateway.cli.common.output import count_text, note, print_json, progress

if TYPE_CHECKING:
    import pyarrow as pa

    from tutti.sources.source import Source

Writer = Callable[["pa.RecordBatch"], Any]


@click.command()
@click.option(
    "--url",
    envvar="TUTTI_URL",
    metavar="URL",
    help=f"One or more gateways. [default: $TUTTI_URL or, if --path and --archive are not given either, {DEFAULT_URL}]",
)
@click.option(
    "--path",
    metavar="DIR[,DIR]",
    shell_complete=complete_directory,
    help="Data directories to read instead of gateways; the gateways may be down.",
)
@click.option(
    "--archive",
    metavar="ARCHIVE",
    shell_complete=complete_directory,
    help="Archive (directory or URL) for records that retention has removed. An archive can be the only source.",
)
@click.option("--topic", "topics", multiple=True, shell_complete=complete_topic, help="Only these topics (repeatable).")
@click.option(
    "--start",
    type=BOUND,
    default="earliest",
    show_default=True,
    help="First offset: a number, earliest, latest or an ISO 8601 time.",
)
@click.option("--end", type=BOUND, default="latest", show_default=True, help="Offset after the last record, in the same form.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Output file: FILE.parquet, FILE.jsonl or FILE.arrow, in upper or lower case.",
)
@json_option
@click.pass_context
def replay(
    context: click.Context,
    url: str | None,
    path: str | None,
    archive: str | None,
    topics: tuple[str, ...],
    start: Bound,
    end: Bound,
    out: Path,
    as_json: bool,
) -> None:
    """Write a range of committed records to a file.

    A Parquet or Arrow file has the columns of the Spark format; a jsonl file has the lines of `tutti tail`. The file appears under
    its name only when it is complete. If the source is a data directory and its gateway is down, the default end is the last
    watermark that the gateway wrote. To read only an archive while $TUTTI_URL is set, give --url ''. The default end is then the
    end of the archive.
    """
    if path is not None and context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--url and --path are both sources: give one of them")
    if out.suffix.lower() not in _WRITERS:
        raise UsageError(f"--out {out}: the name must end in one of {', '.join(_WRITERS)}")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: the directory {out.parent} does not exist; create it, or choose another file")
    if path is None and archive is None:
        url = resolve_url(context, url)
    with _output_file(out) as write, contextlib.closing(_source(url, path, archive)) as source:
        from tutti.data.scan_request import ScanRequest
        from tutti_gateway.cli.log.ranges import offset_of_damage, resolve

        low, high = resolve(source, start, end)
        records, position = 0, low
        with progress(out.name, high - low) as meter, offset_of_damage(lambda: position):
            for batch, _, _ in source.scan(ScanRequest(low, high, topics or None)):
                write(batch)
                records += batch.num_rows
                if batch.num_rows:
                    position = batch.column("offset")[-1].as_py() + 1
                meter.advance(batch.num_rows)
    if as_json:
        print_json({"file": str(out), "records": records, "start": low, "end": high})
    else:
        note(f"{count_text(records, 'record')} of [{low}, {high}) written to {out}")


def _source(url: str | None, path: str | None, archive: str | None) -> Source:
    from tutti.reader import source_of
    from tutti.sources.flight import FlightSource

    if path is None and not url and archive is None:
        raise UsageError("no source is given: give --url tutti://HOST:PORT, --path DIR or --archive DIR")
    if url and path is None:
        await_gateway(url)
    return source_of(FlightSource(url) if url and path is None else None, path.split(",") if path is not None else None, archive)


@contextmanager
def _output_file(out: Path) -> Iterator[Writer]:
    """Yield a function that writes batches to a temporary file. If the block succeeds, sync the file and rename it to `out`."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    with contextlib.ExitStack() as stack:
        with _convert_errors(out, ConfigError):
            partial.touch()
            stack.callback(partial.unlink, missing_ok=True)
            writer = stack.enter_context(contextlib.ExitStack())
            append = writer.enter_context(_WRITERS[out.suffix.lower()](partial))

        def write(batch: pa.RecordBatch) -> None:
            with _convert_errors(out, TuttiError):
                append(batch)

        try:
            yield write
        finally:
            with _convert_errors(out, TuttiError):
                writer.close()
        with _convert_errors(out, TuttiError):
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(out)


@contextmanager
def _convert_errors(out: Path, kind: type[TuttiError]) -> Iterator[None]:
    """Convert an operating system error in the block to an error of type `kind` that names --out and the remedy."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise kind(f"--out {out} cannot be written ({reason}): {remedy(error, 'choose another file')}") from error


@contextmanager
def _parquet(path: Path) -> Iterator[Writer]:
    from pyarrow import parquet

    from tutti.data.frames.columns import SCHEMA

    with parquet.ParquetWriter(path, SCHEMA) as writer:
        yield writer.write_batch


@contextmanager
def _arrow(path: Path) -> Iterator[Writer]:
    import pyarrow as pa

    from tutti.data.frames.columns import SCHEMA

    with pa.ipc.new_file(str(path), SCHEMA) as writer:
        yield writer.write_batch


@contextmanager
def _jsonl(path: Path) -> Iterator[Writer]:
    from tutti.reading.json_lines import json_lines

    with path.open("wb") as file:

        def write(batch: pa.RecordBatch) -> None:
            file.write(b"".join(line + b"\n" for line in json_lines(batch)))

        yield write


_WRITERS: dict[str, Callable[[Path], AbstractContextManager[Writer]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".arrow": _arrow,
}
