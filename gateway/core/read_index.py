"""Read index: proof that this log holds everything that was decided when a question came.

A gateway that lags, or that is cut off and has not noticed it, does not know what it lacks. So an answer that a caller acts upon is
confirmed first, without a frame in the log:

1. The question notes the time, the view and the end of the log. This gateway asks every voter for a heartbeat.
2. A majority of the roster answers after that time, and none of those has promised a higher view. Every higher view needs the
   promise of a majority, so none of them had decided anything when the question came.
3. A view decides only what all its members have voted for, this gateway too. So what was decided by then lies at or below the noted
   end, and the frontier reaches it.

A view that is installed meanwhile holds everything that earlier views decided: the end of the log is noted again, and answers that
came after the question still count.

Source: Ongaro, "Consensus: Bridging Theory and Practice" (2014), 6.4; there a leader asks, here any member of the view may.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core import limits
from gateway.core.context import Context
from gateway.core.peers import Peers


class _Question:
    """One question: when it came, and what the log must reach."""

    __slots__ = ("answer", "asked_us", "beats", "end", "view")

    def __init__(self, answer: Callable[[bool], None], asked_us: int, view: int, end: int) -> None:
        self.answer = answer
        self.asked_us = asked_us
        self.view = view
        self.end = end
        self.beats = 0


class ReadIndex:
    """Confirms the frontier, for readers and for the layers."""

    def __init__(self, context: Context, peers: Peers, inquire: Callable[[], None]) -> None:
        """`inquire` asks every voter for a heartbeat that answers one of this moment."""
        self._standing = context.standing
        self._window = context.window
        self._outbox = context.outbox
        self._peers = peers
        self._inquire = inquire
        self._waiting: list[_Question] = []

    @property
    def waiting(self) -> bool:
        """Whether a question waits for its answer."""
        return bool(self._waiting)

    def asked(self, number: int) -> None:
        """A reader asks; the action `ReadIndex` of this number answers it."""
        self.confirm(lambda confirmed: self._outbox.read_index(number, confirmed))

    def confirm(self, answer: Callable[[bool], None]) -> None:
        """Call `answer` with True once the log here holds all that was decided before this call, or with False if that cannot be
        found out: this gateway is in no view that decides, a majority does not answer, or too many questions wait.
        """
        if len(self._waiting) >= limits.READ_INDEX_QUESTIONS_MAX or not self._may_decide():
            answer(False)
            return
        question = _Question(answer, self._outbox.now.mono_us, self._standing.view, self._window.end)
        self._peers.refresh()
        if self._confirmed(question):
            answer(True)
            return
        self._waiting.append(question)
        self._inquire()

    def _may_decide(self) -> bool:
        """Whether this gateway is in a view that decides, or expects to be in the next one."""
        standing = self._standing
        return standing.taking_part and (standing.primary or standing.pausing)

    def _confirmed(self, question: _Question) -> bool:
        standing = self._standing
        if not standing.primary or not standing.current(standing.view):
            return False
        if question.view != standing.view:
            question.view, question.end = standing.view, self._window.end
        if self._window.frontier < question.end:
            return False
        now_us = self._outbox.now.mono_us
        answered = [
            peer.number
            for peer in self._peers
            if peer.beat is not None and question.asked_us <= peer.beat.echo_us <= now_us and peer.beat.promised <= standing.view
        ]
        return self._peers.rosters.majority(self._peers.incarnations([standing.me, *answered]))

    def look(self) -> None:
        """Answer the questions that can be answered now."""
        self._peers.refresh()
        waiting, self._waiting = self._waiting, []
        possible = self._may_decide()
        for question in waiting:
            if not possible or question.beats > limits.READ_INDEX_HEARTBEATS:
                question.answer(False)
            elif self._confirmed(question):
                question.answer(True)
            else:
                self._waiting.append(question)

    def beat(self) -> None:
        """One heartbeat: it asks again what had no answer, as every heartbeat does."""
        for question in self._waiting:
            question.beats += 1
