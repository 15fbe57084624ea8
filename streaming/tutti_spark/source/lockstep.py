"""Lockstep: in each micro-batch, all streams of one query end at the same offset (option `lockstep`).

Spark runs each source of a query in its own process, and the log may grow between two requests. In each trigger, one thread of
Spark requests the next offset once from each source, always in the same order. So the first source is the *leader*, which decides
the end of the micro-batch. The other sources (*followers*) wait until their own frontier has reached the leader's end, and return
this end.

Counts verify that the requests match: in its request number k, a follower must find the leader's answer number k. Spark does not
pass the query's identity to a source, so only the counts can detect two queries with the same name.

The sources of a driver share one file in the driver's scratch directory, and change the file under a lock:

    {"members": [...], "initial": ..., "leader": ..., "asked": k, "end": {"log", "begin", "offset"}, "terms": {...}}

Each member locks its own file while it is alive. At the start of a run, Spark requests the read limits of all sources before any
offset, and at that time the sources join. After the first offset request, a run accepts no more members. A source that comes later
belongs to the next run or to a different query. This source waits until no member is alive, and then resets the shared state.
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

#: Options that must be equal in all sources of a query: name -> value as text.
Terms = Mapping[str, str]
_JOIN_TIMEOUT_SECONDS = limits.SPARK_RELEASE_US / 1e6
_JOIN_POLL_SECONDS = 0.02
_INITIAL_STATE: dict[str, Any] = {"members": [], "initial": None, "leader": None, "asked": 0, "end": None, "terms": None}


def scratch_directory(option: str) -> Path:
    """Return the private scratch directory of Spark's driver; `option` is the option that needs it.

    Raises:
        UsageError: SPARK_LOCAL_DIRS is not set, because Spark's driver did not start this process.
    """
    directories = os.environ.get("SPARK_LOCAL_DIRS", "")
    if not directories:
        raise UsageError(f"option {option!r} needs a directory of Spark's driver, and SPARK_LOCAL_DIRS does not name one")
    return Path(directories.split(",")[0])


class Lockstep:
    """Membership of one source in a lockstep."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        """Create a membership that opens no file yet. All sources share `directory` (None: the driver's scratch directory)."""
        self._name = name
        self._directory = directory
        self._member = ""
        self._state_file = -1  # file descriptors
        self._member_lock = -1
        self._requests = 0

    def join(self) -> None:
        """Join the run that is about to begin. Further calls do nothing.

        Raises:
            UsageError: another run uses the name and has not ended after `SPARK_RELEASE_US`.
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
                raise self._name_conflict("that query is still running")
            time.sleep(_JOIN_POLL_SECONDS)

    def initial(self, terms: Terms, log: str, decide: Callable[[], int]) -> int:
        """Return the offset at which all streams begin, which `decide` returns in the first stream that calls this method.

        Raises:
            UsageError: the other streams read a different log, or have different starting options.
        """
        self.join()
        known = self._snapshot()["initial"]
        if known is None:
            offset = decide()  # outside of the lock, because this call may wait for a gateway
            with self._update() as state:
                self._check_member(state)
                if state["initial"] is None:
                    state["initial"] = {"log": log, "offset": offset, "terms": dict(terms)}
                known = state["initial"]
        self._check_log(known["log"], log)
        self._check_terms(known["terms"], terms)
        return int(known["offset"])

    def end(self, terms: Terms, log: str, begin: int, decide: Callable[[], int]) -> int:
        """Return the end of the micro-batch that begins at `begin`, which `decide` returns in the leader.

        The stream must call this method once in each trigger. The end equals `begin` if no record is available.

        Raises:
            UsageError: the other streams have a different log, position or options, or another query uses the same name.
        """
        self.join()
        self._requests += 1
        state = self._snapshot()
        if state["leader"] in (None, self._member):
            return self._decide_as_leader(terms, log, begin, decide())
        self._check_member(state)
        if state["asked"] != self._requests:
            raise self._name_conflict(
                f"its leading stream has had {state['asked']} offset requests, and this stream {self._requests}"
            )
        end = state["end"]
        self._check_log(end["log"], log)
        self._check_terms(state["terms"], terms)
        if end["begin"] != begin:
            raise UsageError(
                f"the streams with the option lockstep {self._name!r} are at different offsets, {end['begin']} and {begin} of log "
                f"{log}, because the checkpoint is from a query without this option. Use a new checkpointLocation, and a lockstep "
                "name that no other query uses"
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
                raise self._name_conflict("two streams became the leader at the same time")
            end = {"log": log, "begin": begin, "offset": offset}
            state.update({"leader": self._member, "asked": self._requests, "terms": dict(terms), "end": end})
        return offset

    def _check_member(self, state: Mapping[str, Any]) -> None:
        if self._member not in state["members"]:
            raise self._name_conflict("another run has begun and replaced the members of this run")

    def _check_log(self, theirs: str, mine: str) -> None:
        if theirs != mine:
            raise UsageError(
                f"the streams with the option lockstep {self._name!r} read different logs, {theirs} and {mine}, whose offsets have "
                "nothing in common: use one lockstep name for the streams of each log"
            )

    def _check_terms(self, theirs: Terms, mine: Terms) -> None:
        for option in {**theirs, **mine}:
            values = [terms.get(option, "not given") for terms in (theirs, mine)]
            if values[0] != values[1]:
                raise UsageError(
                    f"the streams with the option lockstep {self._name!r} differ in option {option!r}: {values[0]} and "
                    f"{values[1]}. Give all these streams the same value"
                )

    def _name_conflict(self, why: str) -> UsageError:
        return UsageError(
            f"another query of this driver also uses the lockstep name {self._name!r} ({why}): set the option 'lockstep' to a "
            "name that no other running query has"
        )

    def _snapshot(self) -> dict[str, Any]:
        """Return a copy of the shared state, read under the lock."""
        with self._lock(fcntl.LOCK_SH):
            return self._read()

    def _read(self) -> dict[str, Any]:
        text = os.pread(self._state_file, os.fstat(self._state_file).st_size, 0)
        try:
            return dict(json.loads(text)) if text else dict(_INITIAL_STATE)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"the shared state of lockstep name {self._name!r} is incomplete: start the query again") from error

    @contextmanager
    def _update(self) -> Iterator[dict[str, Any]]:
        """Lock the shared state for a change, and write the state at the end of the block."""
        with self._lock(fcntl.LOCK_EX):
            try:
                state = self._read()
            except Unavailable:  # a member was killed while it wrote the state, so its query has ended
                state = dict(_INITIAL_STATE)
            before = json.dumps(state)
            yield state
            if (after := json.dumps(state)) != before:
                # Pad with spaces to the old length, because a kill could prevent a separate truncation.
                os.pwrite(self._state_file, after.encode().ljust(os.fstat(self._state_file).st_size), 0)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        fcntl.flock(self._state_file, kind)
        try:
            yield
        finally:
            fcntl.flock(self._state_file, fcntl.LOCK_UN)
