"""Lockstep: in each micro-batch, all streams of one query end at the same offset (option `lockstep`).

Spark runs each source of a query in its own process, and the log may grow between two requests. But Spark requests offsets from one
thread, from each source once per trigger, always in the same order. So the source with the first request leads: it decides the end
of the micro-batch. The other sources return the leader's end, after their own view of the frontier has reached it.

Counts verify that the requests match: at its request number k, a follower must find the leader's answer number k. Spark does not
tell a source which query it belongs to, so only the counts can separate two queries with the same name.

The sources share one file in the driver's scratch directory, and change it under a lock:

    {"members": [...], "initial": ..., "leader": ..., "asked": k, "end": {"log", "begin", "offset"}, "terms": {...}}

Each member locks its own file while it is alive. Spark requests the limits of all sources of a run before it requests any offset,
and the sources join at that time. After the first offset request, a run accepts no more members. A later source belongs to the next
run or to a different query. Such a source waits until no member is alive, and then resets the shared state.
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

#: Options that the sources of one query must share: values as text, by name.
Terms = Mapping[str, str]
_JOIN_TIMEOUT_SECONDS = limits.SPARK_RELEASE_US / 1e6
_JOIN_POLL_SECONDS = 0.02
_INITIAL_STATE: dict[str, Any] = {"members": [], "initial": None, "leader": None, "asked": 0, "end": None, "terms": None}


def scratch_directory(option: str) -> Path:
    """Return the private scratch directory of Spark's driver; `option` is the option that needs it.

    Raises:
        UsageError: SPARK_LOCAL_DIRS is not set, so Spark's driver did not start this process.
    """
    directories = os.environ.get("SPARK_LOCAL_DIRS", "")
    if not directories:
        raise UsageError(f"option {option!r} needs a directory of Spark's driver, and SPARK_LOCAL_DIRS does not name one")
    return Path(directories.split(",")[0])


class Lockstep:
    """One source's membership in a lockstep."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        """Open no file yet. All sources of the driver share `directory` (None: the driver's scratch directory)."""
        self._name = name
        self._directory = directory
        self._member = ""
        self._state_file = -1  # file descriptors
        self._member_lock = -1
        self._requests = 0

    def join(self) -> None:
        """Join the run that is about to begin; further calls do nothing.

        Raises:
            UsageError: another run uses the name, and the sources of that run do not end.
        """
        if self._member:
            return
        home = (
            (self._directory or scratch_directory("lockstep"))
            / "tutti-lockstep"
            / hashlib.sha256(self._name.encode()).hexdigest()[:32]
        )
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state_file = os.open(home / "state", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _JOIN_TIMEOUT_SECONDS
        while not self._try_join(home):
            if time.monotonic() > deadline:
                raise self._name_conflict("a running query uses it")
            time.sleep(_JOIN_POLL_SECONDS)

    def initial(self, terms: Terms, log: str, decide: Callable[[], int]) -> int:
        """Return the offset at which all streams begin: the result of `decide` in the first stream that calls this.

        Raises:
            UsageError: the other streams read a different log, or have different starting options.
        """
        self.join()
        known = self._snapshot()["initial"]
        if known is None:
            offset = decide()  # outside of the lock, because it can send requests
            with self._update() as state:
                self._check_member(state)
                if state["initial"] is None:
                    state["initial"] = {"log": log, "offset": offset, "terms": dict(terms)}
                known = state["initial"]
        self._check_log(known["log"], log)
        self._check_terms(known["terms"], terms)
        return int(known["offset"])

    def end(self, terms: Terms, log: str, begin: int, decide: Callable[[], int]) -> int:
        """Return the end of the micro-batch that begins at `begin`: the result of `decide` in the leader.

        Call it once in each trigger. The end equals `begin` when there is nothing to read yet.

        Raises:
            UsageError: the other streams have a different log, position or options; or a different query uses the same name.
        """
        self.join()
        self._requests += 1
        state = self._snapshot()
        if state["leader"] in (None, self._member):
            return self._decide_as_leader(terms, log, begin, decide())
        self._check_member(state)
        if state["asked"] != self._requests:
            raise self._name_conflict(f"Spark asked its streams {state['asked']} times, and this stream {self._requests} times")
        end = state["end"]
        self._check_log(end["log"], log)
        self._check_terms(state["terms"], terms)
        if end["begin"] != begin:
            raise UsageError(
                f"streams of lockstep {self._name!r} are at offsets {end['begin']} and {begin} of log {log}: the checkpoint is "
                "from a query whose streams were not in lockstep. Use a new checkpointLocation, and a name that no other query has"
            )
        return int(end["offset"])

    def leave(self) -> None:
        """Release the locks, so that this source is no longer a member. The end of the process does the same."""
        for descriptor in (self._member_lock, self._state_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._member_lock = self._state_file = -1

    def _try_join(self, home: Path) -> bool:
        with self._update() as state:
            living = [member for member in state["members"] if is_held(home / member)]
            if living and (state["leader"] or state["initial"]):
                return False
            if not living:
                for file in home.glob("member-*"):
                    file.unlink()
                state.update(_INITIAL_STATE)
            member = f"member-{uuid.uuid4().hex}"
            self._member_lock = os.open(home / member, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._member_lock, fcntl.LOCK_EX)
            state["members"] = [*living, member]
            self._member = member
            return True

    def _decide_as_leader(self, terms: Terms, log: str, begin: int, offset: int) -> int:
        with self._update() as state:
            self._check_member(state)
            if state["leader"] not in (None, self._member):
                raise self._name_conflict("Spark asked two leaders at the same time")
            end = {"log": log, "begin": begin, "offset": offset}
            state.update({"leader": self._member, "asked": self._requests, "terms": dict(terms), "end": end})
        return offset

    def _check_member(self, state: Mapping[str, Any]) -> None:
        if self._member not in state["members"]:
            raise self._name_conflict("another run began and replaced the members")

    def _check_log(self, theirs: str, mine: str) -> None:
        if theirs != mine:
            raise UsageError(
                f"streams of lockstep {self._name!r} read different logs, {theirs} and {mine}: offsets of one log mean nothing in "
                "the other. Only streams of one log can share a lockstep"
            )

    def _check_terms(self, theirs: Terms, mine: Terms) -> None:
        for option in {**theirs, **mine}:
            values = [terms.get(option, "not given") for terms in (theirs, mine)]
            if values[0] != values[1]:
                raise UsageError(
                    f"streams of lockstep {self._name!r} differ in option {option!r}: {values[0]} and {values[1]}. Give all of "
                    "them the same value"
                )

    def _name_conflict(self, why: str) -> UsageError:
        return UsageError(
            f"another query of this driver also has streams in lockstep {self._name!r} ({why}): set the option 'lockstep' to a "
            "name that no other running query has"
        )

    def _snapshot(self) -> dict[str, Any]:
        """Return a consistent copy of the shared state."""
        with self._lock(fcntl.LOCK_SH):
            return self._read()

    def _read(self) -> dict[str, Any]:
        text = os.pread(self._state_file, os.fstat(self._state_file).st_size, 0)
        try:
            return dict(json.loads(text)) if text else dict(_INITIAL_STATE)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"the shared state of lockstep {self._name!r} is incomplete: start the query again") from error

    @contextmanager
    def _update(self) -> Iterator[dict[str, Any]]:
        """Lock the shared state for a change, and write it at the end of the block."""
        with self._lock(fcntl.LOCK_EX):
            try:
                state = self._read()
            except Unavailable:  # a member was killed during its write, so its query has ended
                state = dict(_INITIAL_STATE)
            before = json.dumps(state)
            yield state
            if (after := json.dumps(state)) != before:
                # Spaces overwrite the rest of a longer old state. A truncation would be a second step, and a kill could prevent it.
                os.pwrite(self._state_file, after.encode().ljust(os.fstat(self._state_file).st_size), 0)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        fcntl.flock(self._state_file, kind)
        try:
            yield
        finally:
            fcntl.flock(self._state_file, fcntl.LOCK_UN)
