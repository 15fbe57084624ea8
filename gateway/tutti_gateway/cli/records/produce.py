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
from tutti_gateway.cli.common.names import complete_directory, complete_producer, complete_topic
from tutti_gateway.cli.common.options import NumberRange, json_option, url_option
from tutti_gateway.cli.common.output import note, print_json, progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tutti_gateway.cli.records.inputs import Chunk
    from tutti_gateway.cli.records.sender import Report, Sender, SpooledSender, SpoolReport


@click.command()
@url_option
@click.option("--topic", required=True, shell_complete=complete_topic, help="Topic of the records; a new topic is created.")
@click.option(
    "--producer",
    "name",
    metavar="ID",
    shell_complete=complete_producer,
    help="Producer name; a second run with the same input commits no record twice.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "csv"]),
    default="lines",
    show_default=True,
    help="Format of the records.",
)
@click.option("--key", metavar="FIELD", help="Field that becomes the record's key, for json and csv.")
@click.option("--rate", type=NumberRange(min=1e-6), metavar="N", help="Send at most N records a second.")
@click.option(
    "--spool",
    metavar="DIR",
    shell_complete=complete_directory,
    help="Keep records in a spool directory until they commit; needs --producer.",
)
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

    Without FILE, or if FILE is -, the command reads standard input. A record is a text line without its newline, a line of JSON, or
    a CSV row as a JSON object with the field names of the header. The key is the text of the key field; for a JSON number, object
    or list, the key is its text in the line, and for null, the record has no key. A line of JSON that lacks the key field or has
    the field twice is rejected, and so is JSON with more than 512 nested levels.
    The command prints the first and the last offset and the number of committed records. After an invalid line, Ctrl-C or the loss
    of all gateways, the command ends early and prints the same report.

    With --producer, a record's sequence is its number in the input, and a second run skips the records that are already committed.
    The command rejects an input that differs from the input committed under the same name. Without --producer, each run is a new
    producer with a random name; the group deletes the state of such a producer after an idle hour.

    With --spool, the input may be a pipe that cannot be read again: each run sends all records of its input as new records. A
    record is safe as soon as it is on the disk of DIR, even if no gateway answers. Records that are not committed 10 s after the
    end of the input stay in DIR. The next run with the same --producer and DIR sends these records first, and its input may be
    empty.

    With --unordered, a gateway appends the records to its lane, and the printed offsets belong to that lane. Records of different
    lanes have no common order, and --producer is not allowed. Each run starts an epoch, which needs a majority. `tutti tail
    --unordered` prints the records. If such a run ends early, the committed records may have gaps. The report then gives input
    record numbers, counted from 1: the records of unknown outcome (undecided_records), the records that are not committed
    (uncommitted_records), and the number from which on no record is committed (uncommitted_from).

    The exit code is 1 if a record of the input cannot be sent, for example invalid JSON, a line of JSON without the key field, a
    CSV row with too many fields, or a record above 4 MiB; earlier records may be committed. The exit code is 2 for wrong use: an
    invalid option, a missing file, or a key that is not a field of the header. The exit code is 3 if no gateway answers for 10 s at
    the start, or for a minute later.
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
            # Read the first chunk before connecting, so that an invalid or empty file creates no producer.
            # A pipe is not read first, so that the command fails at once if no gateway answers.
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
                raise  # no report is printed: this run sent nothing, and the error text contains the number of committed records
            except (TuttiError, OSError, KeyboardInterrupt) as error:
                wrong = isinstance(error, FormatError | UsageError)  # UsageError: the header of the input lacks the key field
                _print_report(sender.stop_early(limits.REQUEST_TIMEOUT_US / 1e6 if wrong else 0.0), as_json, wrong=wrong)
                raise
    _print_report(report, as_json)


def _check(topic: str, name: str | None, *, unordered: bool, spool: str | None) -> None:
    """Reject options that exclude each other."""
    from tutti.data.names import check_name

    check_name("topic", topic)
    if unordered and name is not None:
        raise UsageError(f"--producer {name} and --unordered exclude each other: omit --producer or --unordered")
    if spool is not None and name is None:
        raise UsageError(f"--spool {spool} needs a --producer ID, so that the next run can continue")


def _sender(
    url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool, spool: str | None
) -> Sender | SpooledSender:
    """Return a `SpooledSender` if a spool is given, otherwise a `Sender`."""
    from tutti_gateway.cli.records.sender import Sender, SpooledSender

    if spool is not None and name is not None:
        return SpooledSender(url, topic, name, spool, rate)
    return Sender(url, topic, name, settings=settings, rate=rate, unordered=unordered)


@contextmanager
def _report_interrupt(nothing: Report, as_json: bool) -> Iterator[None]:
    """Print a hint and the empty report `nothing` if Ctrl-C interrupts the block, which must connect to a gateway."""
    try:
        yield
    except KeyboardInterrupt:
        note("no gateway has opened the producer yet; if a gateway answers, `tutti members` shows the reason")
        _print_report(_unsent(nothing), as_json)
        raise


def _unsent(nothing: Report) -> Report:
    """Return the empty report of a run that ended early."""
    # For a named producer, the first uncommitted record is unknown, because earlier runs may have committed records.
    return nothing._replace(complete=False, uncommitted_from=1 if nothing.producer is None else None)


def _first(chunks: Iterator[Chunk], nothing: Report, as_json: bool) -> list[Chunk]:
    """Return a list with the first chunk, or an empty list for an empty input. If the input is invalid, print the empty report."""
    try:
        return list(islice(chunks, 1))
    except (FormatError, OSError) as error:
        _print_report(_unsent(nothing), as_json, wrong=isinstance(error, FormatError))
        raise


def _print_report(report: Report | SpoolReport, as_json: bool, *, wrong: bool = False) -> None:
    """Print the report. `wrong` is True if the run ended because the input is invalid."""
    if as_json:
        print_json(report.fields())
        return
    for lane, (first, last) in (report.lanes or {}).items():
        print(f"lane {lane}: first offset {first}, last offset {last}", flush=True)
    if report.first is not None:
        print(f"first offset {report.first}, last offset {report.last}", flush=True)
    note(report.sentence(wrong=wrong))
