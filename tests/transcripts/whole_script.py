"""The language of `group_*.txt`: whole groups, which find their views themselves (see `script.py` for the form of a file).

Clients speak as in `script.py` (epoch, topic, submit, close, offset), and so do `low`, `room`, `fail`, `leave`, `limit`. Then:

    gateways NAME...                    blank gateways that are configured together, and start
    gateway NAME OTHER...               one more, configured with those others, which starts
    client NAME sS PRODUCER...          epoch 1 of each producer (instance a) and the topic, opened through this gateway
    start NAME                          a process on its disk
    kill NAME [keep=N]                  the process ends; N frames that were written and not synced survive (default: all of them)
    power NAME                          it loses its power: what was not synced is gone
    wipe NAME                           another disk, blank (it is down)
    damage NAME P                       what its disk holds from position P on cannot be read (it is down)
    slow NAME / fast NAME               its disk reports nothing / reports again
    roster NAME sS #R CHANGE WHO [ADDRESS]         RosterAsked
    force NAME sS #R NAME...            RosterForced: these alone remain
    hold [KIND...] FROM>TO              such messages wait in the network (a gateway may be `*`; no kind: all)
    lose [KIND...] FROM>TO              are lost
    copy [KIND...] FROM>TO              arrive, and a copy waits in the network
    let [KIND...] FROM>TO [N]           messages that wait arrive (the N oldest)
    forget-held [KIND...] FROM>TO       messages that wait are lost
    split NAME,NAME... NAME...          nothing passes between these parts
    heal                                nothing is held, lost or split any more; what waits goes on waiting
    until FACT                          time passes until it is so (see `facts.py`)
    check FACT...                       it is so, or the transcript is wrong; `check not FACT` the contrary
    beats N                             N heartbeats pass
    settle                              disks and network do what is under way
    quiet / loud                        only views that decide, answers and ends are told / everything is
    watch NAME... / watch               only what these do is told / all again

What is told: a message when it arrives, and what a gateway then does. Heartbeats and what is only said again are left out, and so
are timers. A line `PROBLEM` tells of something that may never happen, `WRONG` of a check that failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.transcripts.facts import is_so
from tests.transcripts.group import incarnation
from tests.transcripts.network import rule
from tests.transcripts.script import VERBS, Script, number_of
from tests.transcripts.text import action_text, frames_text
from tests.transcripts.whole import USUAL, Pace, Whole
from tutti.data.hard_state import HardState
from tutti.data.view_id import view_text
from tutti_gateway.core.protocol.actions import Action, Halt, Peers, Persist, ReadLog, Reply, Send, SetTimer, Stopped, ViewInstalled
from tutti_gateway.core.protocol.events import EpochAsked, Event, RosterAsked, RosterForced, StackConfig, TopicAsked

HIDDEN = ("HEARTBEAT", "PROBE")
TICK_US = 3_600_000_000  # so that ticks come with views only: times do not matter then
UNTIL_BEATS = 400
CHARACTERS = 132  # of a line


def shorter(text: str) -> str:
    """The line without the times of ticks, and short enough for a page."""
    text = re.sub(r" time=\d+ms", "", text)
    if len(text) <= CHARACTERS:
        return text
    parts = text.split("; ")
    if len(parts) > 3:
        text = f"{parts[0]}; ... {len(parts) - 2} more ...; {parts[-1]}"
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 4]} ..."


class WholeScript(Script):
    """One transcript of a whole group at work."""

    illegal = "PROBLEM"

    def __init__(self, pace: Pace = USUAL) -> None:
        super().__init__()
        self.world = Whole(StackConfig(tick_interval_us=TICK_US), self._told, pace)
        self.verbs = {**VERBS, **_VERBS}
        self._quiet = False
        self._of: list[str] = []
        self._said: dict[str, str] = {}
        self._scalars: dict[str, HardState] = {}

    @property
    def problems(self) -> list[str]:
        return self.world.problems

    def finish(self) -> list[str]:
        """The end: every run is replayed. What is wrong."""
        for gateway in self.world.members.values():
            if gateway.stack is not None:
                self.world.watch.ended(gateway, self.world.config)
        return self.problems

    # Telling

    def _told(self, who: str, what: Action | str) -> None:
        text = self._news(what) if isinstance(what, str) else self._text(who, what)
        if not text or (self._of and who not in self._of):
            return
        told = isinstance(what, Halt | Stopped | Reply) or (isinstance(what, ViewInstalled) and what.primary)
        if told or not self._quiet:
            self.lines.append(shorter(text))

    def _news(self, line: str) -> str:
        """A message; nothing where it was said before between the two."""
        pair, _, text = line.partition(" ")
        kind = text.removeprefix("held: ").removeprefix("lost: ").split(" ")[0]
        if kind in HIDDEN or self._said.get(f"{pair} {kind}") == text:
            return ""
        self._said[f"{pair} {kind}"] = text
        return line

    def _text(self, who: str, action: Action) -> str:
        match action:
            case Send() | SetTimer() | Peers() | ReadLog():
                return ""
            case ViewInstalled(0):
                return f"{who} is in no view"
            case Persist(_, frames, scalars, cut):
                parts = [f"cuts behind {cut}"] if cut is not None else []
                parts += self._scalars_text(who, scalars) if scalars is not None else []
                parts += [f"writes {frames_text(frames)}"] if frames else []
                return f"{who} {', '.join(parts)}" if parts else ""
        names = dict(enumerate(sorted(self.world.members), 1)) | self.world.members[who].names
        return f"{who} {action_text(action, names, 0)}"

    def _scalars_text(self, who: str, scalars: HardState) -> list[str]:
        before = self._scalars.get(who, HardState())
        self._scalars[who] = scalars
        texts = []
        if scalars.promised != before.promised:
            texts.append(
                f"{'will propose' if scalars.coordinated == scalars.promised else 'promises'} {view_text(scalars.promised)}"
            )
        if scalars.accepted != before.accepted:
            texts.append(f"accepts {view_text(scalars.accepted)}")
        return texts

    def quiet(self, words: list[str]) -> None:
        self._quiet = True

    def loud(self, words: list[str]) -> None:
        self._quiet = False

    def only(self, words: list[str]) -> None:
        self._of = words

    # Gateways

    def gateways(self, words: list[str]) -> None:
        configured = {name: f"{name}:7400" for name in words}
        for name in words:
            self.world.add(name, configured)
        for name in words:
            self.world.start(name)

    def gateway(self, words: list[str]) -> None:
        self.world.add(words[0], {name: f"{name}:7400" for name in words})
        self.world.start(words[0])

    def start(self, words: list[str]) -> None:
        self.world.start(words[0])

    def kill(self, words: list[str]) -> None:
        keep = int(words[1].removeprefix("keep=")) if len(words) > 1 else 1 << 30
        self._down(words[0], keep)

    def power(self, words: list[str]) -> None:
        self._down(words[0], 0)

    def _down(self, name: str, keep: int) -> None:
        self.world.kill(name, keep)
        self._scalars[name] = self.world.members[name].disk.scalars
        self._said = {key: text for key, text in self._said.items() if name not in key.split(" ")[0].split(">")}

    def wipe(self, words: list[str]) -> None:
        self.world.wipe(words[0])
        self._scalars.pop(words[0], None)

    def damage(self, words: list[str]) -> None:
        self.world.members[words[0]].disk.damaged(int(words[1]))

    def slow(self, words: list[str]) -> None:
        self.world.slow(words[0], True)

    def fast(self, words: list[str]) -> None:
        self.world.slow(words[0], False)

    def _event(self, name: str, event: Event) -> None:
        self.world.step(self.world.members[name], event)

    def client(self, words: list[str]) -> None:
        name, session = words[0], number_of(words[1])
        for request, producer in enumerate(words[2:], 1):
            self._event(name, EpochAsked(session, request, producer, incarnation("a"), 1))
        self._event(name, TopicAsked(session, len(words) - 1, "flights"))
        self.until(["answers", name, words[1], str(len(words) - 1)])
        self.world.settle()

    def roster(self, words: list[str]) -> None:
        name, session, request, change, who, *address = words
        self._event(name, RosterAsked(number_of(session), number_of(request), change, who, "".join(address)))

    def force(self, words: list[str]) -> None:
        name, session, request, *names = words
        self._event(name, RosterForced(number_of(session), number_of(request), tuple(names)))

    def limit(self, words: list[str]) -> None:
        super().limit(words)
        self.world.config = self.group.config or self.world.config

    # Network and time

    def hold(self, words: list[str]) -> None:
        self.world.network.rules.append(rule("hold", words))

    def lose(self, words: list[str]) -> None:
        self.world.network.rules.append(rule("lose", words))

    def copy(self, words: list[str]) -> None:
        self.world.network.rules.append(rule("copy", words))

    def let(self, words: list[str]) -> None:
        count = int(words.pop()) if words[-1].isdigit() else None
        assert self.world.let(rule("hold", words), count), f"nothing is held of {words}"

    def forget_held(self, words: list[str]) -> None:
        assert self.world.network.take(rule("hold", words)), f"nothing is held of {words}"

    def split(self, words: list[str]) -> None:
        self.world.network.split([word.split(",") for word in words])

    def heal(self, words: list[str]) -> None:
        self.world.network.rules.clear()

    def until(self, words: list[str]) -> None:
        world = self.world
        if not world.run(world.mono_us + UNTIL_BEATS * world.config.heartbeat_us, lambda: is_so(world, words)):
            self.lines.append(f"WRONG: {UNTIL_BEATS} heartbeats passed until {' '.join(words)}")

    def check(self, words: list[str]) -> None:
        wanted = words[0] != "not"
        if is_so(self.world, words if wanted else words[1:]) is wanted:
            self.lines.append(f"ok {' '.join(words)}")
        else:
            self.lines.append(f"WRONG: {' '.join(words)}")

    def beats(self, words: list[str]) -> None:
        self.world.run(self.world.mono_us + int(words[0]) * self.world.config.heartbeat_us)

    def settle(self, words: list[str]) -> None:
        self.world.settle()


_VERBS: dict[str, Callable[[WholeScript, list[str]], None]] = {
    "gateways": WholeScript.gateways,
    "gateway": WholeScript.gateway,
    "client": WholeScript.client,
    "start": WholeScript.start,
    "kill": WholeScript.kill,
    "power": WholeScript.power,
    "wipe": WholeScript.wipe,
    "damage": WholeScript.damage,
    "slow": WholeScript.slow,
    "fast": WholeScript.fast,
    "roster": WholeScript.roster,
    "force": WholeScript.force,
    "limit": WholeScript.limit,
    "hold": WholeScript.hold,
    "lose": WholeScript.lose,
    "copy": WholeScript.copy,
    "let": WholeScript.let,
    "forget-held": WholeScript.forget_held,
    "split": WholeScript.split,
    "heal": WholeScript.heal,
    "until": WholeScript.until,
    "check": WholeScript.check,
    "beats": WholeScript.beats,
    "settle": WholeScript.settle,
    "quiet": WholeScript.quiet,
    "loud": WholeScript.loud,
    "watch": WholeScript.only,
}
