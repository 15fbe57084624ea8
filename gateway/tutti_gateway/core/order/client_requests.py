"""Client requests that wait for the log: epochs, topics, offset commits and FORGETs.

A gateway sends a request to the coordinator like a batch. The coordinator orders a frame as the answer, or does nothing if the log
already contains such a frame. The client gets its answer when the frame is decided in the log of *its* gateway. The coordinator
sends a denial (DENY) only if no frame will answer the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tutti import limits as common_limits
from tutti.data.client_protocol import Denied, Done, EpochFenced, EpochOpened, RequestAnswer, TopicOpened
from tutti.data.frames.bodies import EpochBody, OffsetsBody, TopicBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.order.received_table import Names, ReceivedTable
from tutti_gateway.core.protocol.messages import Ask, AskEpoch, AskForget, Asking, AskOffsets, AskRoster, AskTopic, Deny

#: Function that calls its argument with True if this log provably holds all decided frames, else with False (`ReadIndex.confirm`).
Confirm = Callable[[Callable[[bool], None]], None]


class Request:
    """A request to the coordinator, and the client session that waits for the answer."""

    __slots__ = ("ask", "number", "sent_us", "session")

    def __init__(self, session: int, number: int, ask: Ask) -> None:
        self.session = session
        self.number = number
        self.ask = ask
        self.sent_us = 0


class Requests:
    """The waiting requests, grouped by kind and subject. Of one reader's waiting commits, only the first has been sent.

    `names` maps names to numbers in the decided log. `count` is the number of requests that wait for the log or for `confirm`.
    `confirm` checks whether this log holds all decided frames, because only such a log justifies a final refusal (protocol/order,
    O28). A gateway that lags denies a request with code `behind`, so that the client asks another gateway.
    """

    def __init__(self, context: Context, received: ReceivedTable, confirm: Confirm) -> None:
        self._confirm = confirm
        self._received = received
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._resend_us = limits.RESEND_HEARTBEATS * context.config.heartbeat_us
        self.names = Names(context.window.state)
        self._waiting: dict[tuple[type, object], list[Request]] = {}
        self._unconfirmed: set[tuple[int, int]] = set()  # (session, number) of each request that waits for `confirm`
        self.count = 0

    # From the client

    def epoch(self, session: int, number: int, name: str, instance: bytes, epoch: int) -> None:
        """Answer a request for an epoch from the decided log, or send the request to the coordinator."""
        if not 0 < epoch <= limits.EPOCH_MAX:
            self.deny(session, number, "malformed", f"epoch {epoch} is not between 1 and {limits.EPOCH_MAX}", retry=False)
            return
        ask = AskEpoch(name, instance, epoch)
        answer = self._epoch_answer(number, ask)
        if answer is not None:
            self._outbox.answers(session).append(answer)
        else:
            self._request(session, number, ask)

    def _epoch_answer(self, number: int, ask: AskEpoch) -> RequestAnswer | None:
        """Return the answer to an epoch request, None if the decided log does not determine the answer yet."""
        state = self._window.state
        producer = self.names.producers.get(ask.name)
        if producer is None:
            return EpochFenced(number, state.floor) if ask.epoch <= state.floor else None
        line = state.producers[producer]
        if line.epoch == ask.epoch and line.instance == ask.instance:
            return EpochOpened(number, producer, line.epoch, line.sequence, line.progress)
        return EpochFenced(number, line.epoch) if line.epoch >= ask.epoch else None

    def topic(self, session: int, number: int, name: str) -> None:
        """Answer with the number of a registered topic, or request its registration."""
        known = self.names.topics.get(name)
        if known is not None:
            self._outbox.answers(session).append(TopicOpened(number, known))
        else:
            self._request(session, number, AskTopic(name))

    def offsets(self, session: int, number: int, reader: str, offset: int, back: bool) -> None:
        """Check an offset commit, and send it to the coordinator after the reader's earlier commits are decided.

        A commit contains the frontier at the time of its arrival, even if it first waits for `confirm`. If the log holds a commit
        of the reader after that frontier, the new one may be a repeated copy, so the coordinator does not order it. Therefore a
        late copy never moves the reader back (protocol/order, O27).
        """
        # A client may repeat a request that is in progress, which must not become a second commit.
        if any((earlier.session, earlier.number) == (session, number) for earlier, _ in self._commits(reader)):
            return  # one answer is enough for both copies of the request
        ask = AskOffsets(reader, offset, self._window.frontier)
        after = self._last(reader)
        self._act_unless(
            lambda: self._offset_wrong(reader, offset, back),
            (session, number, "offset"),
            lambda: self._commit(session, number, ask, after),
        )

    def _last(self, reader: str) -> Request | None:
        """Return the last offset commit of the reader that waits at this gateway, None if no commit waits."""
        waiting = self._commits(reader)
        return waiting[-1][0] if waiting else None

    def _commit(self, session: int, number: int, ask: AskOffsets, after: Request | None) -> None:
        """Send an offset commit, or deny it if another commit of the reader arrived during the wait for `confirm`.

        `after` is the last commit of the reader that was waiting when this commit arrived, None if no commit was waiting.
        """
        before = self._window.state.readers.get(ask.reader, -1)
        # If the reader's last waiting commit is not `after`, that commit arrived during the wait.
        overtaken = self._last(ask.reader) not in (after, None)
        # The coordinator ignores a request if the log holds a commit of the reader after the frontier in the request.
        if not overtaken and (ask.frontier == self._window.frontier or self._received.last_commit(ask.reader) <= ask.frontier):
            self._request(session, number, ask)
        elif ask.offset >= before:
            reason = f"another commit of reader {ask.reader!r} arrived meanwhile; commit {ask.offset} again"
            self.deny(session, number, "offset", reason, retry=True)
        else:  # no retry, because a lower offset may come from an old process that a new process of the reader has replaced
            self.deny(session, number, "offset", _overtaken(ask.reader, before, ask.offset), retry=False)

    def _offset_wrong(self, reader: str, offset: int, back: bool) -> str:
        """Return the reason why an offset commit contradicts this log; empty if the commit is valid."""
        state, waiting = self._window.state, self._commits(reader)
        if not 0 <= offset <= state.next_offset:
            return f"reader {reader!r} commits offset {offset}, and the committed log ends at {state.next_offset}"
        # Waiting commits of the reader will be decided before this one, so it is compared with the last of them.
        before = waiting[-1][1].offset if waiting else state.readers.get(reader, -1)
        return _overtaken(reader, before, offset) if offset < before and not back else ""

    def _act_unless(self, wrong: Callable[[], str], request: tuple[int, int, str], act: Callable[[], None]) -> None:
        """Call `act` for a request (session, number, refusal code), unless `wrong` returns a reason against the request.

        If this gateway lags, a request that looks wrong may be valid. The gateway therefore confirms its frontier before it denies
        the request finally. If the session ends before the confirmation, the request is dropped.
        """
        session, number, code = request
        if (session, number) in self._unconfirmed:
            return  # one answer is enough for both copies of the request
        if not wrong():
            act()
            return
        if self._deny_if_full(session, number):
            return

        def judge(confirmed: bool) -> None:
            # `session_closed` has dropped the request.
            if (session, number) not in self._unconfirmed:
                return
            self._unconfirmed.remove((session, number))
            self.count -= 1
            reason = wrong()
            if not reason:
                act()
            elif confirmed:
                self.deny(session, number, code, reason, retry=False)
            else:
                behind = f"{reason}; this gateway lags or is cut off from a majority: ask another gateway"
                self.deny(session, number, "behind", behind, retry=True)

        self._unconfirmed.add((session, number))
        self.count += 1
        self._confirm(judge)

    def _commits(self, reader: str) -> list[tuple[Request, AskOffsets]]:
        """Return the reader's offset commits that wait at this gateway, in order of arrival.

        Only the first commit in the result has been sent to the coordinator.
        """
        waiting = self._waiting.get((AskOffsets, reader), ())
        return [(request, request.ask) for request in waiting if isinstance(request.ask, AskOffsets)]

    def forget(self, session: int, number: int, names: tuple[str, ...]) -> None:
        """Send a request for a FORGET of the named producers to the coordinator, or deny the request."""
        advice = f"; give 1 to {common_limits.DELETE_PRODUCERS_MAX} that `tutti producers` lists"
        if not 1 <= len(names) <= common_limits.DELETE_PRODUCERS_MAX:
            self.deny(session, number, "unknown", f"{len(names)} names were given{advice}", retry=False)
            return

        def wrong() -> str:
            unknown = next((name for name in names if name not in self.names.producers), None)
            return f"producer {unknown!r} is not known{advice}" if unknown is not None else ""

        self._act_unless(
            wrong,
            (session, number, "unknown"),
            lambda: self._request(session, number, AskForget(tuple(sorted({self.names.producers[name] for name in names})))),
        )

    def _request(self, session: int, number: int, ask: Ask) -> None:
        waiting = self._waiting.get(_key(ask), ())
        if any((one.session, one.number, one.ask) == (session, number, ask) for one in waiting):
            return  # one answer is enough for both copies of the request
        if self._deny_if_full(session, number):
            return
        self.count += 1
        request = Request(session, number, ask)
        self._waiting.setdefault(_key(ask), []).append(request)
        # The log must contain the commits of one reader in the order of their arrival, so they are sent one after another.
        if not waiting or not isinstance(ask, AskOffsets):
            self._send(request)

    def _deny_if_full(self, session: int, number: int) -> bool:
        """Deny a request if too many requests wait. Return True if the request was denied."""
        full = self.count >= limits.REQUESTS_MAX
        if full:
            self.deny(session, number, "limit", f"{self.count} requests wait at this gateway; ask again later", retry=True)
        return full

    def deny(self, session: int, number: int, code: str, reason: str, retry: bool) -> None:
        """Answer a client's request with a denial. If `retry` is True, the client may repeat the request."""
        self._outbox.answers(session).append(Denied(number, code, reason, retry))

    def session_closed(self, session: int) -> None:
        """Send no more answers to a session that has ended.

        The session's offset commits and the requests that wait for `confirm` are dropped, because the client may already continue
        at another gateway. All other requests of the session continue.
        """
        left = {key for key in self._unconfirmed if key[0] != session}
        self.count -= len(self._unconfirmed) - len(left)
        self._unconfirmed = left
        # The reader may already commit at another gateway, so this gateway must not send old commits later.
        for _, name in [key for key in self._waiting if key[0] is AskOffsets]:
            self._end_commits(str(name), lambda request: request.session == session)
        for request in self._all():
            if request.session == session:
                request.session = 0

    # From the coordinator and the log

    def on_deny(self, message: Deny) -> None:
        """Answer the clients whose request the coordinator denies."""
        ask = message.ask
        if isinstance(ask, AskOffsets):
            first = next(iter(self._commits(ask.reader)), None)
            # A denial with another frontier belongs to an earlier copy, and does not concern the copy that was sent last.
            if first is not None and first[1] == ask:
                self._end_commits(ask.reader, lambda request: request is first[0], message)
            return
        for request in self._pop(ask):
            self.deny(request.session, request.number, message.code, message.reason, message.retry)

    def _end_commits(self, reader: str, ends: Callable[[Request], bool], denied: Deny | None = None) -> None:
        """Remove the reader's first commit for which `ends` returns True, and all later commits of the reader.

        The later commits depend on the outcome of the removed one, so their clients must commit again.
        """
        waiting = self._commits(reader)
        first = next((index for index, (request, _) in enumerate(waiting) if ends(request)), None)
        if first is None:
            return
        for request, _ in waiting[first:]:
            if denied is not None and ends(request):
                self.deny(request.session, request.number, denied.code, denied.reason, denied.retry)
            elif not ends(request):
                reason = f"an earlier commit of reader {reader!r} failed; commit again"
                self.deny(request.session, request.number, "busy", reason, retry=True)
        self._replace_waiting((AskOffsets, reader), [request for request, _ in waiting[:first]])

    def _pop(self, ask: Ask) -> list[Request]:
        """Remove and return all waiting requests with the content `ask`."""
        key = _key(ask)
        waiting = self._waiting.get(key, [])
        popped = [request for request in waiting if request.ask == ask]
        self._replace_waiting(key, [request for request in waiting if request.ask != ask])
        return popped

    def _replace_waiting(self, key: tuple[type, object], left: list[Request]) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        self.count -= len(waiting) - len(left)
        if left:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def decided(self, frame: Frame) -> None:
        """Answer the requests that a decided EPOCH, TOPIC, FORGET or OFFSETS frame fulfils.

        `window.state` may already include later frames of the run to which the frame belongs.
        """
        self.names.apply(frame)
        if frame.kind == Kind.EPOCH:
            self._epoch_decided(frame, decode_body(EpochBody, frame.body))
        elif frame.kind == Kind.TOPIC:
            for request in self._pop(AskTopic(decode_body(TopicBody, frame.body).name)):
                self._outbox.answers(request.session).append(TopicOpened(request.number, frame.topic))
        elif frame.kind == Kind.OFFSETS:
            for reader, offset in decode_body(OffsetsBody, frame.body).readers.items():
                self._offset_decided(reader, offset, frame.position)
        elif frame.kind == Kind.FORGET:
            self._forget_decided()

    def _epoch_decided(self, frame: Frame, body: EpochBody) -> None:
        key = (AskEpoch, body.name)
        left = []
        for request in self._waiting.get(key, ()):
            ask = request.ask
            # A request for a higher epoch continues to wait, because an EPOCH frame for it may follow.
            if not isinstance(ask, AskEpoch) or ask.epoch > frame.epoch:
                left.append(request)
                continue
            # If two instances request the same epoch, the instance in the EPOCH frame owns the epoch (order, O20).
            mine = ask.epoch == frame.epoch and ask.instance == body.instance
            opened = EpochOpened(request.number, frame.producer, frame.epoch, body.sequence, body.progress)
            fenced = EpochFenced(request.number, frame.epoch)
            self._outbox.answers(request.session).append(opened if mine else fenced)
        self._replace_waiting(key, left)

    def _offset_decided(self, reader: str, offset: int, position: int) -> None:
        """Answer the reader's waiting commits after a commit of the reader, from any gateway, is decided.

        The next waiting commit is sent with the position of the decided one as its frontier. This gateway's frontier may already be
        higher, but this object has not yet handled the frames in between.
        """
        waiting = self._commits(reader)
        reached = 0
        # Consecutive commits of the same offset have the same effect, so one decided frame answers them all.
        while reached < len(waiting) and waiting[reached][1].offset == offset:
            self._outbox.answers(waiting[reached][0].session).append(Done(waiting[reached][0].number))
            reached += 1
        left = [request for request, _ in waiting[reached:]]
        self._replace_waiting((AskOffsets, reader), left if reached else [])
        # Commits of one reader are sent one after another, and the next one can follow now.
        if reached and left:
            self._send(left[0], position)
        elif not reached:
            for request, ask in waiting:
                # A lower offset may come from an old process that a new process of the reader has replaced, so it gets no retry.
                again = ask.offset >= offset
                reason = f"reader {reader!r} committed offset {offset} elsewhere meanwhile; commit {ask.offset} again"
                self.deny(
                    *(request.session, request.number, "offset", reason if again else _overtaken(reader, offset, ask.offset)), again
                )

    def _forget_decided(self) -> None:
        known = self._window.state.producers
        for request in list(self._all()):
            ask = request.ask
            if isinstance(ask, AskForget) and not any(number in known for number in ask.producers):
                for done in self._pop(ask):
                    self._outbox.answers(done.session).append(Done(done.number))
            elif isinstance(ask, AskEpoch) and ask.name not in self.names.producers:
                floor = self._window.state.floor
                # An epoch at or below the floor can never begin, so the client must choose a higher one.
                if ask.epoch <= floor:
                    for fenced in self._pop(ask):
                        self._outbox.answers(fenced.session).append(EpochFenced(fenced.number, floor))

    def log_replaced(self) -> None:
        """Answer the requests whose outcome the installed snapshot determines, and deny all waiting offset commits."""
        self.names = Names(self._window.state)
        for request in list(self._all()):
            ask = request.ask
            answer: RequestAnswer | None = None
            if isinstance(ask, AskEpoch):
                answer = self._epoch_answer(request.number, ask)
            elif isinstance(ask, AskTopic) and ask.name in self.names.topics:
                answer = TopicOpened(request.number, self.names.topics[ask.name])
            if answer is not None:
                self._outbox.answers(request.session).append(answer)
                key = _key(ask)
                self._replace_waiting(key, [other for other in self._waiting[key] if other is not request])
            elif isinstance(ask, AskOffsets):
                # A snapshot contains only the last offset of each reader, so it does not show whether this commit was decided.
                reason = f"this gateway installed a snapshot and does not know if this commit is in it; commit {ask.offset} again"
                self.deny(request.session, request.number, "busy", reason, retry=True)
                key = _key(ask)
                self._replace_waiting(key, [other for other in self._waiting[key] if other is not request])
        self._forget_decided()

    # Time and views

    def installed(self) -> None:
        """Send all requests to a new coordinator."""
        for request in self._sendable():
            self._send(request, self._window.frontier)

    def beat(self) -> None:
        """Run one heartbeat: repeat requests that got no answer for some time, because a message was probably lost."""
        for request in self._sendable():
            if self._outbox.now.mono_us - request.sent_us >= self._resend_us:
                self._send(request, self._window.frontier)

    def _send(self, request: Request, frontier: int | None = None) -> None:
        """Send a request to the coordinator. `frontier`, if given, becomes the frontier in an offset commit."""
        request.sent_us = self._outbox.now.mono_us
        # This gateway has found no copy of the commit in its log up to `frontier`, so a higher frontier than before is safe.
        if isinstance(request.ask, AskOffsets) and frontier is not None:
            request.ask = msgspec.structs.replace(request.ask, frontier=frontier)
        if self._view_state.primary:  # otherwise the request waits for the coordinator of the next view
            self._outbox.send(self._view_state.coordinator, Asking(self._view_state.view, request.ask))

    def _sendable(self) -> Iterator[Request]:
        for (kind, _), waiting in self._waiting.items():
            yield from waiting[:1] if kind is AskOffsets else waiting

    def _all(self) -> Iterator[Request]:
        for waiting in self._waiting.values():
            yield from waiting


def _overtaken(reader: str, before: int, offset: int) -> str:
    return (
        f"reader {reader!r} has committed offset {before}, and {offset} lies below: another reader of that name is ahead. Open "
        f"it again without `start` to continue at {before}. Give start={offset} only to read {offset} to {before - 1} again"
    )


def _key(ask: Ask) -> tuple[type, object]:
    if isinstance(ask, AskEpoch | AskTopic | AskRoster):
        return type(ask), ask.name
    return type(ask), ask.reader if isinstance(ask, AskOffsets) else ask.producers
