"""The network of a whole group: it delivers, but for what rules of the test say about kinds of messages and pairs of gateways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.transcripts.text import message_kind, message_text
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.messages import Message


class Letter(NamedTuple):
    """A message on its way."""

    sender: str
    to: str
    incarnation: bytes
    data: bytes

    @property
    def message(self) -> Message:
        """As the receiver gets it."""
        return codec.decode_message(self.data)

    @property
    def kind(self) -> str:
        """Word by which rules name it."""
        return message_kind(self.message)

    @property
    def text(self) -> str:
        """For the transcript."""
        return message_text(self.message)


@dataclass(frozen=True)
class Rule:
    """What happens to messages of these kinds (none: of every kind) from one gateway to another (`*`: any).

    Attributes:
        verb: "hold", "lose", "copy" (delivered, and a copy is held), or "cut" (lost, and not told).
    """

    verb: str
    kinds: frozenset[str]
    sender: str
    to: str

    def applies(self, letter: Letter) -> bool:
        """Whether it is about this message."""
        ends = self.sender in ("*", letter.sender) and self.to in ("*", letter.to)
        return ends and (not self.kinds or letter.kind in self.kinds)


def rule(verb: str, words: list[str]) -> Rule:
    """`KIND... FROM>TO` as a rule."""
    sender, to = words[-1].split(">")
    return Rule(verb, frozenset(words[:-1]), sender, to)


class Network:
    """Rules, and what they hold.

    Attributes:
        rules: the last one that is about a message says what happens to it.
        held: in the order in which it was sent; what is sent again is held once.
    """

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.held: list[Letter] = []

    def verdict(self, letter: Letter) -> str:
        """What happens to the message: the verb of a rule, or "pass"."""
        found = next((one.verb for one in reversed(self.rules) if one.applies(letter)), "pass")
        if found in ("hold", "copy"):
            if letter in self.held:
                return "pass" if found == "copy" else "hold again"
            self.held.append(letter)
        return found

    def take(self, wanted: Rule, count: int | None = None) -> list[Letter]:
        """Held messages that a rule is about, the oldest first; they are held no more."""
        taken = [letter for letter in self.held if wanted.applies(letter)][:count]
        for letter in taken:
            self.held.remove(letter)
        return taken

    def split(self, parts: list[list[str]]) -> None:
        """Nothing passes between the parts."""
        for part in parts:
            others = [name for other in parts if other is not part for name in other]
            self.rules += [Rule("cut", frozenset(), sender, to) for sender in part for to in others]
