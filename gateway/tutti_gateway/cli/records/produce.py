"""`tutti produce`: sends a file or standard input to a topic, record by record."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tutti import limits
from tutti.errors import FormatError, TuttiError, UsageError
from tutti_gateway.cli.common.options import NumberRange, json_option, url_option
from tutti_gateway.cli.common.output import note, print_json, progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tutti_gateway.cli.records.inputs import Chunk
    from tutti_gateway.cli.records.sender import Report, Sender, SpooledSender, SpoolReport


@click.command()
@url_option
@click.option("--topic", required=True, help="The topic; it is created if it does not exist.")
@click.option("--producer", "name", metavar="ID", help="Producer name: a second run with the same input commits nothing twice.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "csv"]),
    default="lines",
    show_default=True,
    help="Format of the records.",
)
@click.option("--key", metavar="FIELD", help="Field that becomes the key (json, csv).")
@click.option("--rate", type=NumberRange(min=1e-6), metavar="N", help="Limit of records in a second.")
@click.option("--spool", metavar="DIR", help="Keep records on this disk until they commit; with --producer.")
@click.option("--unordered", is_flag=True, help="Send to a gateway's lane, outside the total order.")
@json_option
@click.argument("file", required=False, default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def produce(
    url: str,
    topic: str,
    name: str | None,
    form: str,
    key: str | None,
    rate: float | None,
    spool: str | None,
    unordered: bool,
    as_json: bool,
    file: str,
) -> None:
    """Send a file or standard input to a topic, record by record.

    FILE is standard input by default, or if it is -. A record is a line (without its newline), a line of JSON, or a CSV row as a
    JSON object with the header's names. The command prints the first and the last offset and the number of committed records, also
    when it ends early because of an invalid line, Ctrl-C or an unreachable gateway. A key is the text of its field; a JSON number,
    object or list keeps its bytes from the line. JSON that has the key twice, or is nested more than 512 levels deep, is rejected.

    With --producer, a record's sequence is its number in the input. Records that are already committed are skipped. An input that
    differs from the one committed under the same name is rejected. Without --producer, each run is a new producer with a random
    name; the group deletes its state after an idle hour.

    With --spool, the input need not be readable again, for example a pipe: the records of each run are new. A record is safe once
    it is on the disk of DIR, also while no gateway answers. Records not committed 10 s after the end of the input stay there, and
    the next run with the same --producer and DIR sends them first; the input of that run may be empty.

    With --unordered, offsets belong to the lane that took the records; there is no order between lanes, and --producer is not
    allowed. Each run starts an epoch, which needs a majority. `tutti tail --unordered` prints the records. After an early end, the
    committed records may have gaps. The command then reports record numbers of the input, from 1: of unknown outcome
    (undecided_records), in no log (uncommitted_records), and the first number after which nothing is committed (uncommitted_from).

    Exit code 1: a record of the input cannot be sent (invalid JSON, a row of another width than the header, larger than 4 MiB);
    earlier records may be committed. 2: wrong use (an option, a missing file, a key that is not a field of the header). 3: no
    gateway answers, at the start (10 s) or for a minute.
    """
    from tutti_gateway.cli.records.inputs import read_records
    from tutti_gateway.cli.records.sender import InputChanged, Report

    _check(topic, name, unordered=unordered, spool=spool)
    report: Report | SpoolReport
    report, nothing = Report(topic, name, 0, 0, None, None, 0.0, lanes={} if unordered else None), False
    with ExitStack() as stack:
        path = None if file == "-" else Path(file)
        if path is None and sys.stdin is None:
            raise UsageError("standard input is closed: give a FILE, or connect standard input")
        stream = sys.stdin.buffer if path is None else stack.enter_context(path.open("rb"))
        chunks = read_records(stream, form, key)
        if path is not None and path.is_file():
            # Invalid or empty input creates no producer. A pipe is not read first: its writer must learn at once that no gateway
            # answers.
            first = _first(chunks, report, as_json)
            chunks = chain(first, chunks)
            nothing = not first and name is None
        if not nothing:
            with _report_interrupt(report, as_json):
                sender = _sender(url, topic, name, settings=f"{topic} {form} {key}", rate=rate, unordered=unordered, spool=spool)
                stack.enter_context(sender)
            meter = stack.enter_context(progress(topic, None))
            try:
                for chunk in chunks:
                    meter.advance(sender.send(chunk))
                report = sender.finish()
            except InputChanged:
                raise  # nothing was sent, and the error states the committed records
            except (TuttiError, OSError, KeyboardInterrupt) as error:
                wrong = isinstance(error, FormatError | UsageError)  # includes a key that is missing in the header of the input
                _print_report(sender.stop_early(limits.REQUEST_TIMEOUT_US / 1e6 if wrong else 0.0), as_json, wrong=wrong)
                raise
    _print_report(report, as_json)


def _check(topic: str, name: str | None, *, unordered: bool, spool: str | None) -> None:
    """Reject options that exclude each other."""
    from tutti.data.names import check_name

    check_name("topic", topic)
    if unordered and name is not None:
        raise UsageError(f"--producer {name} needs the total order to commit nothing twice: omit --producer or --unordered")
    if spool is not None and name is None:
        raise UsageError(f"--spool {spool} needs a --producer ID, so that the next run can continue")


def _sender(
    url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool, spool: str | None
) -> Sender | SpooledSender:
    """Return the sender: with a spool or without."""
    from tutti_gateway.cli.records.sender import Sender, SpooledSender

    if spool is not None and name is not None:
        return SpooledSender(url, topic, name, spool, rate)
    return Sender(url, topic, name, settings=settings, rate=rate, unordered=unordered)


@contextmanager
def _report_interrupt(nothing: Report, as_json: bool) -> Iterator[None]:
    """After Ctrl-C while the command connects, report that the producer was not opened and that this run committed `nothing`."""
    try:
        yield
    except KeyboardInterrupt:
        note("no gateway has opened the producer yet; if a gateway answers, `tutti members` shows the reason")
        _print_report(_unsent(nothing), as_json)
        raise


def _unsent(nothing: Report) -> Report:
    """Mark the report as ended early; the committed records of a named producer are unknown here."""
    return nothing._replace(complete=False, uncommitted_from=1 if nothing.producer is None else None)


def _first(chunks: Iterator[Chunk], nothing: Report, as_json: bool) -> list[Chunk]:
    """Return the first of `chunks`, if any; on an input error here, report `nothing` as committed."""
    try:
        return list(islice(chunks, 1))
    except (FormatError, OSError) as error:
        _print_report(_unsent(nothing), as_json, wrong=isinstance(error, FormatError))
        raise


def _print_report(report: Report | SpoolReport, as_json: bool, *, wrong: bool = False) -> None:
    """Print the report; `wrong` is True if the input itself ended the run."""
    if as_json:
        print_json(report.fields())
        return
    for lane, (first, last) in (report.lanes or {}).items():
        print(f"lane {lane}: first offset {first}, last offset {last}", flush=True)
    if report.first is not None:
        print(f"first offset {report.first}, last offset {report.last}", flush=True)
    note(report.sentence(wrong=wrong))
