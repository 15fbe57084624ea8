"""Read index: proof that this log holds every frame that was decided before a request arrived (protocol/membership, M28).

A gateway that lags, or that is cut off and has not noticed, does not know which frames it lacks. An answer on which a caller acts
must therefore be confirmed first. The confirmation writes no frame to the log:

1. An inquiry stores the time, the view and the end of the log. This gateway asks every voter for a heartbeat.
2. A majority of the roster answers after that time, and none of these gateways has promised a higher view. A higher view needs the
   promises of a majority, so no higher view had decided a frame when the inquiry began.
3. A view decides a frame only after all its members, this gateway included, have voted for it. Every frame that was decided when
the
   inquiry began is therefore at or below the stored end. The proof is complete when the frontier reaches that end.

An inquiry answers all questions that arrived before the inquiry began. Only one inquiry runs at a time, and all later questions
share the next one, so many questions need only a few messages.

If a view is installed during an inquiry, the log of that view holds all frames that earlier views decided. The inquiry then stores
the new end of the log, and answers that have already arrived still count.

Source: Ongaro, "Consensus: Bridging Theory and Practice" (2014), 6.4. In Ongaro's version only the leader asks; here any member of
    the view may ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers


class _Inquiry:
    """The questions that one round of heartbeats answers. `begun_us`, `view` and `end` are set when the round begins."""

    __slots__ = ("answers", "beats", "begun", "begun_us", "end", "view")

    def __init__(self) -> None:
        self.answers: list[Callable[[bool], None]] = []
        self.beats = 0  # number of heartbeats since the first question
        self.begun = False
        self.begun_us = self.view = self.end = 0


class ReadIndex:
    """Confirms that this gateway's frontier includes all decided frames, for readers and for other layers."""

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
        """Answer a reader's question with the action `ReadIndex` and the number of that question."""
        self.confirm(lambda confirmed: self._outbox.read_index(number, confirmed))

    def confirm(self, answer: Callable[[bool], None]) -> None:
        """Call `answer` with True when this log holds all frames that were decided before this call.

        `answer` gets False if this gateway is in no view that decides, or if a majority does not answer. Each caller must limit the
        number of its own questions.
        """
        if not self._may_decide():
            answer(False)
            return
        idle = not self._waiting
        # All questions that arrive during an inquiry share the next one.
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
        """Return the number of heartbeats for which an inquiry waits: a fixed number, plus two of the longest round trips."""
        return limits.READ_INDEX_HEARTBEATS + self._peers.answer_beats()

    def _confirmed(self, inquiry: _Inquiry) -> bool:
        view_state = self._view_state
        # After a promise of a higher view, that view may already decide frames.
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
        """Count one heartbeat. No message is repeated, because each regular heartbeat also gets an echo."""
        for inquiry in self._waiting:
            inquiry.beats += 1
