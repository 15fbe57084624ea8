"""Entry point of `tutti`. Imports happen inside `main`, so that Ctrl-C during an import ends like a later one."""

from __future__ import annotations

import os

try:
    from tutti_gateway.cli.common.interrupts import EXIT_INTERRUPTED, INTERRUPTED, Loading, heed, heed_no_more
except KeyboardInterrupt:  # the SIGINT handler is not installed yet
    os.write(2, b"interrupted\n")
    os._exit(130)

with Loading():
    import sys
    from collections.abc import Sequence

    from tutti.runtime.block_pandas import without_pandas
    from tutti_gateway.cli.common.standard_streams import fill


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tutti ARGUMENTS` and return its exit code; errors are one line on stderr.

    Without arguments, use those of the process: `tutti` then owns the process, handles Ctrl-C, and ends after the return.
    """
    if arguments is not None:
        return _run(arguments)
    heed()
    try:
        without_pandas()
        return _run(sys.argv[1:])
    finally:
        heed_no_more()


def _run(arguments: Sequence[str]) -> int:
    fill()
    try:
        with Loading():
            from tutti_gateway.cli.commands import run
        return run(list(arguments))
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        return EXIT_INTERRUPTED
