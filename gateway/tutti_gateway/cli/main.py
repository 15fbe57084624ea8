"""The entry of `tutti`. What it needs is loaded in `main`, so that a Ctrl-C meanwhile ends as one that comes later."""

from __future__ import annotations

import os

try:
    from tutti_gateway.cli.common.interrupts import EXIT_INTERRUPTED, INTERRUPTED, Loading, heed, heed_no_more
except KeyboardInterrupt:  # what heeds it is not there yet
    os.write(2, b"interrupted\n")
    os._exit(130)

with Loading():
    import sys
    from collections.abc import Sequence

    from tutti.runtime.block_pandas import without_pandas
    from tutti_gateway.cli.common.standard_streams import fill


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tutti ARGUMENTS` and return its exit code; errors are one line on stderr.

    Without arguments they are those of the process, which is `tutti` then: it takes Ctrl-C, and ends when this returns.
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
