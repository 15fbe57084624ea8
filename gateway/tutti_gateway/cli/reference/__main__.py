"""Entry point of `python -m tutti_gateway.cli.reference`, which writes the generated pages of docs/reference."""

from __future__ import annotations

import sys

from tutti_gateway.cli.reference.pages import main

if __name__ == "__main__":
    sys.exit(main())
