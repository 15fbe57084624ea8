"""Errors of the public face: a traceback names them as users import them, and they go from process to process."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import tutti
import tutti.errors

ERRORS = [name for name in tutti.__all__ if issubclass(getattr(tutti, name), tutti.TuttiError)]
#: What a process does that never heard of `tutti`: takes pickles, says what came, and sends them on under the names it knows.
OTHER = """
import pickle, sys
import tutti.errors
assert "tutti" not in sys.modules
sent = pickle.load(sys.stdin.buffer) if {theirs} else {made}
pickle.dump([(type(error) is getattr(tutti.errors, name), str(error), error) for name, error in sent], sys.stdout.buffer)
"""


def test_a_traceback_names_an_error_as_it_is_imported() -> None:
    code = "from tutti import Reader\nReader('tutti://127.0.0.1:1', connect_timeout=0.1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("tutti.Unavailable: no gateway could be read from")


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_the_same_under_both_names(name: str) -> None:
    kind = getattr(tutti, name)
    assert kind is getattr(tutti.errors, name)
    assert (kind.__module__, kind.__qualname__) == ("tutti", name)
    assert repr(kind("full")) == f"{name}('full')"


@pytest.mark.parametrize("theirs", [True, False])
def test_errors_are_pickled_both_ways(theirs: bool) -> None:
    """To a process that imports `gateway` alone and back, and from one that made them itself."""
    made = {name: getattr(tutti, name)(f"what {name} says") for name in ERRORS}
    made["Refused"].code = "busy"
    code = OTHER.format(theirs=theirs, made=f"[(name, getattr(tutti.errors, name)('what ' + name + ' says')) for name in {ERRORS}]")
    given = pickle.dumps(list(made.items()))
    done = subprocess.run([sys.executable, "-c", code], input=given, stdout=subprocess.PIPE, check=True)
    back = pickle.loads(done.stdout)  # noqa: S301 - our own
    for (name, error), (same, said, returned) in zip(made.items(), back, strict=True):
        assert (same, said, type(returned), str(returned)) == (True, str(error), type(error), str(error)), name
        if theirs:
            assert vars(returned) == vars(error)
