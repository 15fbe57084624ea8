"""The entry of `tutti`. What it needs is loaded in `main`, so that a Ctrl-C meanwhile ends as one that comes later."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.cli.loading import EXIT_INTERRUPTED, INTERRUPTED, Loading
from gateway.cli.streams import fill
from gateway.lean import without_pandas


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tutti ARGUMENTS` (those of the process by default) and return its exit code; errors are one line on stderr."""
    fill()
    if arguments is None:
        without_pandas()
    try:
        with Loading():
            from gateway.cli.commands import run
        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        return EXIT_INTERRUPTED
