"""`python -m tutti_gateway` is `tutti`."""

from __future__ import annotations

import sys

from tutti_gateway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
