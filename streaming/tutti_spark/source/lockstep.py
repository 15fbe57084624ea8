"""Streams of one query that move together: in each micro-batch all of them end at one place (option `lockstep`).

Spark asks each source of a query by itself, in a process of its own, and what is there may grow from one question to the next.
But it asks from one thread, all sources once in each trigger, always in the same order. So the one that is asked first leads: it
decides where the micro-batch ends, and the others, asked after it in the same trigger, take its answer and wait until they have
heard of it themselves. That they were is shown by counts: at its question number k a follower has to find the leader's answer
number k. Nothing else could keep two queries of one name apart, as a source does not learn whose it is; where the counts fit, the
answers do, too.

What they share is a file in the driver's own scratch directory, changed under a lock:

    {"members": [...], "initial": ..., "leader": ..., "asked": k, "end": {"log", "begin", "offset"}, "terms": {...}}

Each member holds a lock on a file of its own for as long as it lives. All sources of a run are asked for their limit before the
first of them is asked for an offset: that is when they join. Once offsets were asked for, a run takes in nobody else. Who comes
then belongs to the next run, or to another query: it waits until all members are gone, and then forgets what they left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tutti import limits
from tutti.errors import Unavailable, UsageError
from tutti_spark.common.file_locks import is_held

#: What the sources of one query agree on: options by name, as text.
Terms = Mapping[str, str]
_PARTING_SECONDS = limits.SPARK_PARTING_US / 1e6
_LOOK_SECONDS = 0.02
_NEW: dict[str, Any] = {"members": [], "initial": None, "leader": None, "asked": 0, "end": None, "terms": None}


def scratch_directory(option: str) -> Path:
    """The directory that Spark's driver made for itself alone, as it tells its Python processes; `option` needs it.

    Raises:
        UsageError: it does not tell; this is no such process.
    """
    directories = os.environ.get("SPARK_LOCAL_DIRS", "")
    if not directories:
        raise UsageError(f"option {option!r} needs a directory of Spark's driver, and SPARK_LOCAL_DIRS does not name one")
    return Path(directories.split(",")[0])


class Lockstep:
    """One source's part in the lockstep of that name."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        """Nothing is opened before the first question; `directory` is one that all sources of the driver share."""
        self._name = name
        self._directory = directory
        self._member = ""
        self._state = -1  # file descriptors
        self._life = -1
        self._asked = 0

    def join(self) -> None:
        """Be one of the run that is about to begin; again does nothing.

        Raises:
            UsageError: a run of that name goes on, and its sources do not end.
        """
        if self._member:
            return
        home = (
            (self._directory or scratch_directory("lockstep"))
            / "tutti-lockstep"
            / hashlib.sha256(self._name.encode()).hexdigest()[:32]
        )
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state = os.open(home / "state", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _PARTING_SECONDS
        while not self._joined(home):
            if time.monotonic() > deadline:
                raise self._clash("a query that goes on moves its streams by it")
            time.sleep(_LOOK_SECONDS)

    def initial(self, terms: Terms, log: str, decide: Callable[[], int]) -> int:
        """The offset on log `log` at which all begin: what `decide` gives to the first that asks.

        Raises:
            UsageError: the others read another log, or do not begin where `terms` say.
        """
        self.join()
        known = self._look()["initial"]
        if known is None:
            offset = decide()
            with self._locked() as state:
                self._check_member(state)
                if state["initial"] is None:
                    state["initial"] = {"log": log, "offset": offset, "terms": dict(terms)}
                known = state["initial"]
        self._check_log(known["log"], log)
        self._check_terms(known["terms"], terms)
        return int(known["offset"])

    def end(self, terms: Terms, log: str, begin: int, decide: Callable[[], int]) -> int:
        """Where the micro-batch that begins at `begin` of log `log` ends, `begin` itself when there is none yet: what `decide`
        gives to the source that is asked first. To be asked once in each trigger.

        Raises:
            UsageError: the others read another log, stand elsewhere or cut otherwise; or another query has the name, too.
        """
        self.join()
        self._asked += 1
        state = self._look()
        if state["leader"] in (None, self._member):
            return self._lead(terms, log, begin, decide())
        self._check_member(state)
        if state["asked"] != self._asked:
            raise self._clash(f"its streams were asked {state['asked']} times, this one {self._asked} times")
        end = state["end"]
        self._check_log(end["log"], log)
        self._check_terms(state["terms"], terms)
        if end["begin"] != begin:
            raise UsageError(
                f"streams of lockstep {self._name!r} stand at offsets {end['begin']} and {begin} of log {log}: the checkpoint is "
                "of a query whose streams did not move together. Use a new checkpointLocation, and a name that no other query has"
            )
        return int(end["offset"])

    def leave(self) -> None:
        """Be no longer counted among the living. The end of the process does the same."""
        for descriptor in (self._life, self._state):
            if descriptor >= 0:
                os.close(descriptor)
        self._life = self._state = -1

    def _joined(self, home: Path) -> bool:
        with self._locked() as state:
            living = [member for member in state["members"] if is_held(home / member)]
            if living and (state["leader"] or state["initial"]):
                return False
            if not living:
                for left in home.glob("member-*"):
                    left.unlink()
                state.update(_NEW)
            member = f"member-{uuid.uuid4().hex}"
            self._life = os.open(home / member, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._life, fcntl.LOCK_EX)
            state["members"] = [*living, member]
            self._member = member
            return True

    def _lead(self, terms: Terms, log: str, begin: int, offset: int) -> int:
        with self._locked() as state:
            self._check_member(state)
            if state["leader"] not in (None, self._member):
                raise self._clash("one of them was asked at the same time")
            end = {"log": log, "begin": begin, "offset": offset}
            state.update({"leader": self._member, "asked": self._asked, "terms": dict(terms), "end": end})
        return offset

    def _check_member(self, state: Mapping[str, Any]) -> None:
        if self._member not in state["members"]:
            raise self._clash("it has begun meanwhile")

    def _check_log(self, theirs: str, mine: str) -> None:
        if theirs != mine:
            raise UsageError(
                f"streams of lockstep {self._name!r} read different logs, {theirs} and {mine}: offsets of one mean nothing in the "
                "other. Only streams of one log move together"
            )

    def _check_terms(self, theirs: Terms, mine: Terms) -> None:
        for option in {**theirs, **mine}:
            values = [terms.get(option, "not given") for terms in (theirs, mine)]
            if values[0] != values[1]:
                raise UsageError(
                    f"streams of lockstep {self._name!r} differ in option {option!r}: {values[0]} and {values[1]}. They move "
                    "together, so give all of them the same"
                )

    def _clash(self, why: str) -> UsageError:
        return UsageError(
            f"another query of this driver has streams in lockstep {self._name!r}, too ({why}): give the option 'lockstep' a name "
            "that no other query has while it runs"
        )

    def _look(self) -> dict[str, Any]:
        """What is shared at a moment when nobody writes it."""
        with self._lock(fcntl.LOCK_SH):
            return self._read()

    def _read(self) -> dict[str, Any]:
        text = os.pread(self._state, os.fstat(self._state).st_size, 0)
        try:
            return dict(json.loads(text)) if text else dict(_NEW)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"what lockstep {self._name!r} shares is cut short: start the query again") from error

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """What is shared, alone with it; what the caller makes of it is written at the end."""
        with self._lock(fcntl.LOCK_EX):
            try:
                state = self._read()
            except Unavailable:  # by one that was killed as it wrote, and whose query is at its end
                state = dict(_NEW)
            before = json.dumps(state)
            yield state
            if (after := json.dumps(state)) != before:
                os.pwrite(self._state, after.encode().ljust(os.fstat(self._state).st_size), 0)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        fcntl.flock(self._state, kind)
        try:
            yield
        finally:
            fcntl.flock(self._state, fcntl.LOCK_UN)
