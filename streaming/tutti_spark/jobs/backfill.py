"""`tutti backfill` in the session of `spark-submit`: spark-submit [OPTIONS] backfill.py [ARGUMENTS OF tutti backfill]."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv.insert(1, "backfill")
    runpy.run_module("tutti_gateway", run_name="__main__")
