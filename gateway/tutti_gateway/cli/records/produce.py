"""`tutti produce`: a file or standard input, record by record, to a topic."""

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
    from tutti_gateway.cli.records.sending import Report, Sending
    from tutti_gateway.cli.records.spooling import Spooling, SpoolReport


@click.command()
@url_option
@click.option("--topic", required=True, help="The topic; it is made if it does not exist.")
@click.option(
    "--producer", "name", metavar="ID", help="Send under this name: a second run with the same input commits nothing twice."
)
@click.option(
    "--format", "form", type=click.Choice(["lines", "json", "csv"]), default="lines", show_default=True, help="What a record is."
)
@click.option("--key", metavar="FIELD", help="Field that becomes the key (json, csv).")
@click.option("--rate", type=NumberRange(min=1e-6), metavar="N", help="Records a second, at most.")
@click.option("--spool", metavar="DIR", help="Keep records on this disk until they commit; with --producer.")
@click.option("--unordered", is_flag=True, help="Into the lane of a gateway, beside the one order.")
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

    FILE is standard input when left out, or -. A record is a line (without its newline), a line of JSON, or a row of CSV as a JSON
    object with the header's names. The first and the last offset are printed, and how many records are committed, also when
    something ends the run before its input does: a wrong line, Ctrl-C, a gateway that is gone. A key is the text of its field; a
    number, object or list of JSON keeps the bytes that the line has. JSON with the key twice, or over 512 levels deep, is refused.

    With --producer a record's sequence is its number in the input. What is committed already is skipped, and an input that
    differs from what was committed under the same name is refused. Without it each run is a producer of its own with a random name,
    which is forgotten when it was idle for an hour.

    With --spool the input is one that cannot be read again, as a pipe: each run's records are new ones, and a record that was read
    is safe when it is on the disk of DIR, also while no gateway answers. What is not committed 10 s after the end of the input
    stays there, and the next run with the same --producer and DIR sends it first; its input may be empty.

    With --unordered the offsets are those of the lane that records went into; there is no order between lanes, and no --producer.
    Each run begins an epoch, for which a majority is needed. `tutti tail --unordered` shows them. What is committed of a run that
    something ended may have holes: it tells the numbers of the input's records, from 1, that are not known (undecided_records), in
    no log (uncommitted_records), and from which on nothing is committed (uncommitted_from).

    Exit code 1: a record of the input cannot be sent (it is no JSON, a row of another width than the header, larger than 4 MiB);
    records before it may have been. 2: the command is wrong (an option, a file that does not exist, a key that is no field of the
    header). 3: no gateway answers, at the start (10 s) or for a minute.
    """
    from tutti_gateway.cli.records.inputs import read_records
    from tutti_gateway.cli.records.sending import InputChanged, Report

    _check(topic, name, unordered=unordered, spool=spool)
    report: Report | SpoolReport
    report, nothing = Report(topic, name, 0, 0, None, None, 0.0, lanes={} if unordered else None), False
    with ExitStack() as stack:
        path = None if file == "-" else Path(file)
        if path is None and sys.stdin is None:
            raise UsageError("standard input is closed: name a FILE, or give the command something to read")
        stream = sys.stdin.buffer if path is None else stack.enter_context(path.open("rb"))
        chunks = read_records(stream, form, key)
        if path is not None and path.is_file():
            # Input that is refused, or none, makes no producer. A pipe is not waited for: whoever feeds it wants to know at once
            # that no gateway answers.
            first = _first(chunks, report, as_json)
            chunks = chain(first, chunks)
            nothing = not first and name is None
        if not nothing:
            with _not_let_in(report, as_json):
                sending = _how(url, topic, name, settings=f"{topic} {form} {key}", rate=rate, unordered=unordered, spool=spool)
                stack.enter_context(sending)
            meter = stack.enter_context(progress(topic, None))
            try:
                for chunk in chunks:
                    meter.advance(sending.send(chunk))
                report = sending.finish()
            except InputChanged:
                raise  # nothing was sent, and it says what is committed
            except (TuttiError, OSError, KeyboardInterrupt) as error:
                wrong = isinstance(error, FormatError | UsageError)  # also a key that the header of the input does not name
                _tell(sending.cut_short(limits.REQUEST_TIMEOUT_US / 1e6 if wrong else 0.0), as_json, wrong=wrong)
                raise
    _tell(report, as_json)


def _check(topic: str, name: str | None, *, unordered: bool, spool: str | None) -> None:
    """Refuse options that do not go together."""
    from tutti.data.names import check_name

    check_name("topic", topic)
    if unordered and name is not None:
        raise UsageError(
            f"--producer {name} has a second run commit nothing twice, which goes by the one order: leave it out, or --unordered"
        )
    if spool is not None and name is None:
        raise UsageError(f"--spool {spool} needs a --producer ID, by which the next run goes on")


def _how(
    url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool, spool: str | None
) -> Sending | Spooling:
    """What sends the records: by a spool, or not."""
    from tutti_gateway.cli.records.sending import Sending
    from tutti_gateway.cli.records.spooling import Spooling

    if spool is not None and name is not None:
        return Spooling(url, topic, name, spool, rate)
    return Sending(url, topic, name, settings=settings, rate=rate, unordered=unordered)


@contextmanager
def _not_let_in(nothing: Report, as_json: bool) -> Iterator[None]:
    """Where Ctrl-C comes while a gateway is to let the producer in, say so, and that `nothing` is what this run has committed."""
    try:
        yield
    except KeyboardInterrupt:
        note("no gateway has let the producer in yet; where one answers, `tutti members` says what they wait for")
        _tell(_unsent(nothing), as_json)
        raise


def _unsent(nothing: Report) -> Report:
    """Of a named producer nobody was asked."""
    return nothing._replace(complete=False, uncommitted_from=1 if nothing.producer is None else None)


def _first(chunks: Iterator[Chunk], nothing: Report, as_json: bool) -> list[Chunk]:
    """The first of `chunks`, if there is any; where the input ends the run here already, `nothing` is what it has committed."""
    try:
        return list(islice(chunks, 1))
    except (FormatError, OSError) as error:
        _tell(_unsent(nothing), as_json, wrong=isinstance(error, FormatError))
        raise


def _tell(report: Report | SpoolReport, as_json: bool, *, wrong: bool = False) -> None:
    """Print what was committed; `wrong` says that the input ended the run, and will again."""
    if as_json:
        print_json(report.fields())
        return
    for lane, (first, last) in (report.lanes or {}).items():
        print(f"lane {lane}: first offset {first}, last offset {last}", flush=True)
    if report.first is not None:
        print(f"first offset {report.first}, last offset {report.last}", flush=True)
    note(report.sentence(wrong=wrong))
