"""Tests that the client can be imported on systems other than Linux, and that a Producer names its requirement there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import mmap, os, select, sys
import msgspec, numpy, pyarrow.flight, random, subprocess  # as they are there
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC", "register_at_fork", "posix_fallocate"):
    delattr(os, name)
del select.poll, mmap.MADV_DONTNEED
import tutti
tutti.Producer  # is loaded at its first use
sys.platform = "elsewhere"
try:
    tutti.Producer("tutti://127.0.0.1:1", connect_timeout=0.1)
except tutti.UsageError as error:
    print(error)
"""


def test_a_producer_reports_that_it_needs_linux() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "a Producer runs on Linux and this is elsewhere: run it on a Linux machine or in a container"
