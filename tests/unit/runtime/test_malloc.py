"""Tests of the allocator settings: they take effect, and freed memory returns to the system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutti.runtime import malloc

ROOT = Path(__file__).parents[3]
FAULTS = """
import resource, sys
from tutti.runtime import malloc as allocator
if sys.argv[1] == "tuned":
    assert allocator.configure_allocator(mmap=8 << 20, trim=64 << 20)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):  # the first round makes the heap
    before = faults()
    for _ in range(50):
        blocks = [bytes(range(256)) * 1024 for _ in range(16)]
        del blocks
print(faults() - before)
"""


def run_python(script: str, *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60, env={}
    )
    return run.stdout


def faults(how: str) -> int:
    return int(run_python(FAULTS, how))


def test_blocks_of_a_batchs_size_stay_on_the_heap() -> None:
    assert faults("tuned") * 10 < faults("as it is")


def test_a_users_settings_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert malloc.tuned_by_user()


def test_full_memory_becomes_huge_pages_and_keeps_its_content() -> None:
    script = """
from tutti.runtime import malloc as allocator
data = bytearray(range(256)) * (1 << 18)
told = allocator.use_huge_pages()
assert data == bytearray(range(256)) * (1 << 18)
huge = sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages"))
print(told, huge * 1024)
"""
    told, huge = map(int, run_python(script).split())
    assert told == 0 or huge >= told >= (64 << 20) // 2


def test_no_stack_is_made_larger() -> None:
    script = """
import threading
from tutti.runtime import malloc as allocator
over = threading.Event()
threads = [threading.Thread(target=over.wait) for _ in range(20)]
for thread in threads:
    thread.start()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
allocator.use_huge_pages()
print(resident() - before)
over.set()
"""
    assert int(run_python(script)) < 12 << 20


@pytest.mark.parametrize("fault", [FileNotFoundError(2, "no such file"), ValueError("not a line of it")])
def test_without_linux_memory_information_nothing_happens(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def full() -> Iterator[int]:
        yield from ()
        raise fault

    monkeypatch.setattr(malloc, "_full", full)
    assert malloc.use_huge_pages() == 0
