"""Entry point of `tutti`. Imports run under an `ImportGuard`, so that Ctrl-C during an import causes no traceback."""

from __future__ import annotations

import os

try:
    from tutti_gateway.cli.common.interrupts import EXIT_INTERRUPTED, INTERRUPTED, ImportGuard, ignore_interrupts, install_handler
except KeyboardInterrupt:  # the SIGINT handler is not installed yet
    os.write(2, b"interrupted\n")
    os._exit(130)

with ImportGuard():
    import sys
    from collections.abc import Sequence

    from tutti.runtime.block_pandas import block_pandas
    from tutti_gateway.cli.common.closed_streams import replace_closed_streams


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tutti ARGUMENTS` and return its exit code. An error is printed as one line on standard error.

    Without `arguments`, run the command line of this process, and install the Ctrl-C handler. The process must end afterwards.
    """
    if arguments is not None:
        return _run(arguments)
    install_handler()
    try:
        block_pandas()
        return _run(sys.argv[1:])
    finally:
        ignore_interrupts()


def _run(arguments: Sequence[str]) -> int:
    replace_closed_streams()
    try:
        with ImportGuard():
            from tutti_gateway.cli.commands import run
        return run(list(arguments))
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        return EXIT_INTERRUPTED
