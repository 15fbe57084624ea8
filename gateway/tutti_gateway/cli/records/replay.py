"""`tutti replay`: a committed range to a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tutti.errors import ConfigError, TuttiError, UsageError, remedy
from tutti.reading.positions import Bound
from tutti_gateway.cli.common.options import BOUND, json_option
from tutti_gateway.cli.common.output import counted, note, print_json, progress

if TYPE_CHECKING:
    import pyarrow as pa

    from tutti.sources.source import Source

Writer = Callable[["pa.RecordBatch"], Any]


@click.command()
@click.option("--url", envvar="TUTTI_URL", metavar="URL", help="A gateway or several. [$TUTTI_URL]")
@click.option("--path", metavar="DIR[,DIR]", help="Data directories instead; gateways may be down.")
@click.option(
    "--archive", metavar="ARCHIVE", help="The log's archive, a directory or a URL, for what it has not any more; or alone."
)
@click.option("--topic", "topics", multiple=True, help="Only these topics (may be given several times).")
@click.option(
    "--start",
    type=BOUND,
    default="earliest",
    show_default=True,
    help="First offset: a number, earliest, latest or an ISO 8601 time.",
)
@click.option("--end", type=BOUND, default="latest", show_default=True, help="The offset to stop before, likewise.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="What is written: FILE.parquet, FILE.jsonl or FILE.arrow; upper and lower case are the same.",
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
    """Write a committed range to a file, gateways up or down.

    The file has the columns that Spark sees; jsonl has the lines that `tutti tail` prints. It appears under its name when it is
    complete. From directories whose gateway is down the range ends at the last watermark that the gateway wrote, from an archive
    alone (--url '' where $TUTTI_URL is set) at its end.
    """
    if path is not None and context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--url and --path both say where to read: give one of them")
    if out.suffix.lower() not in _WRITERS:
        raise UsageError(f"--out {out}: the name ends in none of {', '.join(_WRITERS)}")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {out.parent}; make it first, or name another file")
    with _written(out) as write, contextlib.closing(_source(url, path, archive)) as source:
        from tutti_gateway.cli.log.ranges import offset_of_damage, resolve

        low, high = resolve(source, start, end)
        records, position = 0, low
        with progress(out.name, high - low) as meter, offset_of_damage(lambda: position):
            for batch in source.scan(low, high, topics=list(topics) or None):
                write(batch)
                records += batch.num_rows
                if batch.num_rows:
                    position = batch.column("offset")[-1].as_py() + 1
                meter.advance(batch.num_rows)
    if as_json:
        print_json({"file": str(out), "records": records, "start": low, "end": high})
    else:
        note(f"{counted(records, 'record')} of [{low}, {high}) written to {out}")


def _source(url: str | None, path: str | None, archive: str | None) -> Source:
    from tutti.reader import source_of
    from tutti.sources.flight import Reads

    if path is None and not url and archive is None:
        raise UsageError("nothing says where to read: give --url tutti://HOST:PORT (or set TUTTI_URL), --path DIR or --archive DIR")
    return source_of(Reads(url) if url and path is None else None, path.split(",") if path is not None else None, archive)


@contextmanager
def _written(out: Path) -> Iterator[Writer]:
    """What takes batches; the file appears under its name, whole and on disk, when the block ends well, else not at all."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    with contextlib.ExitStack() as stack:
        with _named(out, ConfigError):
            partial.touch()
            stack.callback(partial.unlink, missing_ok=True)
            writer = stack.enter_context(contextlib.ExitStack())
            append = writer.enter_context(_WRITERS[out.suffix.lower()](partial))

        def write(batch: pa.RecordBatch) -> None:
            with _named(out, TuttiError):
                append(batch)

        try:
            yield write
        finally:
            with _named(out, TuttiError):
                writer.close()
        with _named(out, TuttiError):
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(out)


@contextmanager
def _named(out: Path, kind: type[TuttiError]) -> Iterator[None]:
    """Raise an error of the operating system as one that names the file that was asked for, and what to do."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise kind(f"--out {out} cannot be written ({reason}): {remedy(error, 'name another file')}") from error


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
