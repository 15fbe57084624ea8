"""Read index: proof that this log holds every frame that was decided before a request arrived (protocol/membership, M28).

A gateway that lags, or that is cut off and has not noticed, does not know which frames its log lacks. Before a gateway answers from
its log as if the log were complete, it therefore runs an inquiry. An inquiry writes no frame to the log:

- An inquiry stores the time, the view and the end of the log, and asks every voter for a heartbeat.
- A majority of the roster answers after that time, and none of these gateways has promised a higher view. A higher view needs the
  promises of a majority, so no higher view had decided a frame when the inquiry began.
- A view decides a frame only after all its members, this gateway included, have voted for the frame. So every frame that was
  decided when the inquiry began is in this log, up to the end that the inquiry stored.
- The proof is complete when the frontier reaches the stored end.

An inquiry answers all questions that arrived before the inquiry began. Only one inquiry runs at a time, and all questions that
arrive meanwhile share the next inquiry, so many questions need only a few messages.

If a view is installed during an inquiry, the log of that view holds all frames that earlier views decided. The inquiry then stores
the end of this log instead, and answers that have already arrived still count.

Source: section 6.4 of Ongaro, "Consensus: Bridging Theory and Practice" (2014). In Ongaro's version only the leader asks; here any
    member of the view may ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers


class _Inquiry:
    """An inquiry, with the questions that it answers. `begun_us`, `view` and `end` are set when the inquiry begins."""

    __slots__ = ("answers", "beats", "begun", "begun_us", "end", "view")

    def __init__(self) -> None:
        self.answers: list[Callable[[bool], None]] = []
        self.beats = 0  # number of heartbeats since the first question
        self.begun = False
        self.begun_us = self.view = self.end = 0


class ReadIndex:
    """Confirms to readers and to other layers that this gateway's frontier includes all decided frames."""

    def __init__(self, context: Context, peers: Peers, inquire: Callable[[], None]) -> None:
        """`inquire` sends every voter a heartbeat and a probe, so that each one answers with an echo of that heartbeat."""
        self._view_state = context.view_state
        self._window = context.window
        self._outbox = context.outbox
        self._peers = peers
        self._inquire = inquire
        self._waiting: deque[_Inquiry] = deque()  # the current inquiry and the next one

    @property
    def waiting(self) -> bool:
        """True if any question waits for its answer."""
        return bool(self._waiting)

    def on_request(self, number: int) -> None:
        """Run or share an inquiry for a reader's question, and answer with the action `ReadIndex` and the question's number."""
        self.confirm(lambda confirmed: self._outbox.read_index(number, confirmed))

    def confirm(self, answer: Callable[[bool], None]) -> None:
        """Call `answer` with True as soon as this log provably holds all frames that were decided before this call.

        The call gets False if this gateway is in no view that decides, or if a majority does not answer. Each caller must limit the
        number of questions that it asks.
        """
        if not self._may_decide():
            answer(False)
            return
        idle = not self._waiting
        # All questions that arrive during an inquiry share the next inquiry.
        if len(self._waiting) < 2:
            self._waiting.append(_Inquiry())
        self._waiting[-1].answers.append(answer)
        if idle:
            self.check()

    def _may_decide(self) -> bool:
        """True if this gateway is in a view that decides, or may soon be in the next one."""
        view_state = self._view_state
        return view_state.active and (view_state.primary or view_state.pausing)

    def check(self) -> None:
        """Answer the questions of an inquiry that is complete or has failed, and begin the next inquiry."""
        self._peers.refresh()
        while self._waiting:
            inquiry = self._waiting[0]
            possible = self._may_decide() and inquiry.beats <= self._beats_max()
            begins = possible and not inquiry.begun
            if begins:
                inquiry.begun, inquiry.begun_us = True, self._outbox.now.mono_us
                inquiry.view, inquiry.end = self._view_state.view, self._window.end
            confirmed = possible and self._confirmed(inquiry)
            if possible and not confirmed:
                if begins:
                    self._inquire()
                return
            self._waiting.popleft()
            for answer in inquiry.answers:
                answer(confirmed)

    def _beats_max(self) -> int:
        """Return the number of heartbeats for which an inquiry waits: a fixed number, plus twice the longest round trip."""
        return limits.READ_INDEX_HEARTBEATS + self._peers.answer_beats()

    def _confirmed(self, inquiry: _Inquiry) -> bool:
        view_state = self._view_state
        # A view that this member has promised, but not installed, may already decide frames.
        if not view_state.primary or not view_state.current(view_state.view):
            return False
        # The log of a new view holds all frames that earlier views decided, so the end of that log replaces the stored one.
        if inquiry.view != view_state.view:
            inquiry.view, inquiry.end = view_state.view, self._window.end
        # Any frame up to the stored end may have been decided when the question arrived.
        if self._window.frontier < inquiry.end:
            return False
        now_us = self._outbox.now.mono_us
        answered = [
            peer.number
            for peer in self._peers
            if peer.beat is not None and inquiry.begun_us <= peer.beat.echo_us <= now_us and peer.beat.promised <= view_state.view
        ]
        return self._peers.rosters.majority(self._peers.incarnations([view_state.me, *answered]))

    def beat(self) -> None:
        """Count one heartbeat. The inquiry repeats no message, because the voters also echo each regular heartbeat."""
        for inquiry in self._waiting:
            inquiry.beats += 1
