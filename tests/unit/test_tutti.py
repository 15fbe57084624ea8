"""Tests of the public errors: a traceback shows the names that users import, and errors can be pickled."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import tutti
import tutti.errors

ERRORS = [name for name in tutti.__all__ if issubclass(getattr(tutti, name), tutti.TuttiError)]
#: What another process does: takes pickles, reports what came, and sends them on.
OTHER = """
import pickle, sys
import tutti
sent = pickle.load(sys.stdin.buffer)
pickle.dump([(type(error) is getattr(tutti, name), str(error), error) for name, error in sent], sys.stdout.buffer)
"""


def test_a_traceback_names_an_error_as_it_is_imported() -> None:
    code = "from tutti import Reader\nReader('tutti://127.0.0.1:1', connect_timeout=0.1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("tutti.Unavailable: no gateway answered a read within")


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_the_same_under_both_names(name: str) -> None:
    kind = getattr(tutti, name)
    assert kind is getattr(tutti.errors, name)
    assert (kind.__module__, kind.__qualname__) == ("tutti", name)
    assert repr(kind("full")) == f"{name}('full')"


def test_errors_are_pickled_both_ways() -> None:
    made = {name: getattr(tutti, name)(f"what {name} says") for name in ERRORS}
    made["Refused"].code = "busy"
    given = pickle.dumps(list(made.items()))
    done = subprocess.run([sys.executable, "-c", OTHER], input=given, stdout=subprocess.PIPE, check=True)
    back = pickle.loads(done.stdout)  # noqa: S301 - our own
    for (name, error), (same, said, returned) in zip(made.items(), back, strict=True):
        assert (same, said, type(returned), str(returned)) == (True, str(error), type(error), str(error)), name
        assert vars(returned) == vars(error)
