"""Write both pages of docs/explanation about performance from kept results: `python -m benchmarks.performance FILE ...`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import directory
from benchmarks.performance.kept import Kept, read
from benchmarks.performance.sections import SECTIONS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "explanation"
# One template for each page, with the name of its page. A template has no .md, because its links start in docs/.
TEMPLATES = sorted(Path(__file__).resolve().parent.glob("*.txt"))
PLACE = re.compile(r"^\{\{(\w+)\}\}$", re.MULTILINE)


def page(template: str, kept: Kept) -> str:
    """The page: what was written, and what was measured where {{NAME}} stands in a line of its own."""
    return PLACE.sub(lambda found: SECTIONS[found[1]](kept), template)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both pages; return 2 for a file without figures, and without any file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("names", nargs="*", metavar="FILE", help="result file of a run; the last file with a figure counts")
    parser.add_argument("--pages", type=directory, default=PAGES, help="directory of the pages, in place of docs/explanation")
    given = parser.parse_args(arguments)
    files = []
    if not given.names:
        print("performance: of which files? Name those that were written with --json", file=sys.stderr)
        return 2
    for name in given.names:
        try:
            files.append(read(Path(name)))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            print(f"performance: {name}: {why}", file=sys.stderr)
            return 2
    for template in TEMPLATES:
        written = given.pages / f"{template.stem}.md"
        written.write_text(page(template.read_text(), Kept(files)))
        print(f"performance: {written} of {len(files)} files")
    for one in files:
        if one.get("asked", {}).get("quick"):
            print(f"performance: `{one['command']}` measured too little for a page that others are to read", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
