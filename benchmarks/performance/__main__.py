"""`python -m benchmarks.performance FILE ...`: docs/performance.md from its template and what runs kept with --json."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.performance.kept import Kept, read
from benchmarks.performance.sections import SECTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
TEMPLATE = Path(__file__).resolve().parent / "template.txt"  # no .md: its links lead from docs/
PLACE = re.compile(r"^\{\{(\w+)\}\}$", re.MULTILINE)


def page(template: str, kept: Kept) -> str:
    """The page: what was written, and what was measured where {{NAME}} stands in a line of its own."""
    return PLACE.sub(lambda found: SECTIONS[found[1]](kept), template)


def main(names: Sequence[str]) -> int:
    """Write the page; 2 for a file that has no figures, and without any."""
    files = []
    if not names:
        print("performance: of which files? Name those that were written with --json", file=sys.stderr)
        return 2
    for name in names:
        try:
            files.append(read(Path(name)))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            print(f"performance: {name}: {why}", file=sys.stderr)
            return 2
    PAGE.write_text(page(TEMPLATE.read_text(), Kept(files)))
    print(f"performance: {PAGE} of {len(files)} files")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
