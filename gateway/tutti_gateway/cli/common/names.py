"""Completion of names in a shell, with the topics, gateways and producers that a running gateway reports.

The names come from the url that the command would use: the typed `--url`, else $TUTTI_URL, else the default. A completion must
never disturb the command line. If no gateway answers in time, or if the right to list names is missing, it returns no names.
"""

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import click
from click.shell_completion import CompletionItem

from tutti.data.names import is_nameless
from tutti.errors import TuttiError
from tutti_gateway.cli.common.options import resolve_url

#: Time limit of a completion, in seconds, which a user at a prompt accepts.
TIMEOUT_S = 0.5

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
Names = Callable[[str], Iterable[str]]


def _completing(names: Names) -> Complete:
    """Return the function for `shell_complete`. `names` requests all names from the gateways of a url."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        url = resolve_url(context, context.params.get("url"))
        quiet = contextlib.redirect_stderr(io.StringIO())  # hides the client's warnings, which Python prints without a log handler
        with contextlib.suppress(TuttiError, OSError, ImportError), quiet, _time_limit():
            return sorted(name for name in names(url) if name.startswith(incomplete))
        return []

    return complete


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Raise a `TimeoutError` in the block after `TIMEOUT_S`.

    The client's own time limit is not enough, because the client then searches for the reason why a gateway does not answer.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _topics(url: str) -> list[str]:
    from tutti.sources.flight import FlightSource

    with FlightSource(url, timeout=TIMEOUT_S, patience=TIMEOUT_S) as reads:
        return [topic.name for topic in reads.topics()]


def _members(url: str) -> list[str]:
    from tutti.io.admin import AdminClient

    with AdminClient(url, timeout=TIMEOUT_S, rounds=1) as control:
        return [member["name"] for member in control.members()]


def _producers(url: str) -> list[str]:
    from tutti.io.admin import AdminClient

    with AdminClient(url, timeout=TIMEOUT_S, rounds=1) as control:
        names = [producer["name"] for producer in control.producers()]
    return [name for name in names if not is_nameless(name)]


complete_topic = _completing(_topics)
complete_member = _completing(_members)
complete_producer = _completing(_producers)


def complete_directory(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the name of a directory, for an option whose type is text because it also takes a list or a URL."""
    return [CompletionItem(incomplete, type="dir")]
