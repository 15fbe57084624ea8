"""Proves that the allocator takes what it is told, and that what is freed goes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway import allocator

ROOT = Path(__file__).parents[2]
FAULTS = """
import resource, sys
from gateway import allocator
if sys.argv[1] == "tuned":
    assert allocator.tune(mmap=8 << 20, trim=64 << 20)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):  # the first round makes the heap
    before = faults()
    for _ in range(50):
        blocks = [bytes(range(256)) * 1024 for _ in range(16)]
        del blocks
print(faults() - before)
"""


def faults(how: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", FAULTS, how], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60, env={}
    )
    return int(run.stdout)


def test_blocks_of_a_batchs_size_stay_on_the_heap() -> None:
    assert faults("tuned") * 10 < faults("as it is")


def test_a_users_settings_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert allocator.tuned_by_user()
