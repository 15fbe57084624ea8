"""Tests of child processes: a child ends with its parent, even if it is stopped, or if its parent ends before the
child registers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Starts a child that asks to end with it, says who that is, and waits; the child is stopped before it says a word.
PARENT = """
import os, signal, subprocess, sys, time
from tutti.runtime.child_processes import end_with_this_process as ending_with_this
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=ending_with_this(int(sys.argv[1])))
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
time.sleep(60)
"""


def state(pid: int) -> str:
    """Its state letter, Z or nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_stopped_child_is_killed_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(int(signal.SIGKILL))], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        deadline = time.monotonic() + 20
        while state(child) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        parent.kill()
        parent.wait()
    while state(child) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_registers_after_its_parent_ended_ends_at_once(number: signal.Signals) -> None:
    code = (
        f"from tutti.runtime.child_processes import end_with_parent as end; end({os.getpid()} + 1, {int(number)}); print('went on')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (-number, b"")


def test_a_child_that_registers_in_time_continues() -> None:
    code = f"from tutti.runtime.child_processes import end_with_parent; end_with_parent({os.getpid()}, 9); print('went on')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True).stdout == b"went on\n"
