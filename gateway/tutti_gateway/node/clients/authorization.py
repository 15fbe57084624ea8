"""Who of the clients is let in at the client port, and what each may ask: nothing of it is asked where the gateway has no tokens.

Who encrypts with the key of a gateway of the group is that gateway (its reads process, and those of the others); anybody else shows
a token in Hello. What that may do is kept with the session, so that a batch costs a look into a set and a record nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tutti.data.client_protocol import (
    SUBMIT_UNORDERED,
    ChangeRoster,
    Fence,
    ForceRoster,
    Forget,
    Hello,
    Leave,
    Members,
    OpenProducer,
    OpenTopic,
    Producers,
    RefusedAnswer,
    SaveOffset,
    Status,
)
from tutti.data.frames.frame import Frame
from tutti.data.names import is_nameless, nameless_name
from tutti.errors import NotAllowed
from tutti.security.tokens import WHAT, WHO, Access, Tokens, gateway_access
from tutti.zmtp import z85
from tutti_gateway.node.clients.sessions import Session

Asked = OpenProducer | OpenTopic | SaveOffset | Forget | Fence | Status | Producers | Members | ChangeRoster | ForceRoster | Leave

IN_THE_CLEAR = (
    "this gateway takes clients that encrypt and show a token: set TUTTI_TOKEN_FILE to the file that its operator gave out, or "
    "give `credentials`; a client of a release before that cannot come in"
)
_ADMIN: dict[type, str] = {
    Fence: "fence a producer",
    Forget: "have a producer forgotten",
    Producers: "list all producers",
    Members: "list the members of the group",
    ChangeRoster: "change the roster",
    ForceRoster: "force the roster",
    Leave: "make a gateway leave",
}


class KnowsKeys(Protocol):
    """What is needed of the gateways' keys (`tutti_gateway.transport.keys.Keyring`)."""

    def name_of(self, public: str) -> str:
        """The gateway with that public key, empty if nobody's is known to be."""

    def refresh(self) -> bool:
        """Look whether others are listed now."""


class Named(Protocol):
    """A topic of the log."""

    name: str


class Admission:
    """Decides about clients. Owned by the driver's thread."""

    def __init__(
        self,
        tokens: Tokens,
        keys: KnowsKeys,
        peer: Callable[[bytes], bytes | None],
        topics: Callable[[], Mapping[int, Named]],
    ) -> None:
        """Decide by these.

        Args:
            tokens: of clients.
            keys: of gateways.
            peer: the public key that a connection encrypts with, None where it does not.
            topics: those of the log, by number.
        """
        self._tokens = tokens
        self._keys = keys
        self._peer = peer
        self._topics = topics

    def access(self, routing: bytes, hello: Hello) -> Access:
        """Who says Hello by a connection.

        Raises:
            NotAllowed: nobody who is known.
        """
        key = self._peer(routing)
        if key is None:
            self._tokens.count("clear")
            raise NotAllowed(IN_THE_CLEAR, WHO)
        gateway = self._keys.name_of(z85.encode(key))
        return gateway_access(gateway) if gateway else self._tokens.who(hello.token)

    def check(self, session: Session, asked: Asked) -> None:
        """Refuse a request that the session's client may not make.

        Raises:
            NotAllowed: it may not.
        """
        try:
            self._check(session.access, asked)
        except NotAllowed as error:
            self._tokens.count_refused(error)
            raise

    def _check(self, access: Access, asked: Asked) -> None:
        match asked:
            case OpenTopic(_, name):
                access.require_produce(name)
            case OpenProducer(_, name, instance):
                access.require_producer(name)
                if is_nameless(name) and name != nameless_name(instance) and not access.admin:
                    raise NotAllowed(
                        f"producer {name} has no name and is another client's: open one with a name, or a new one without", WHAT
                    )
            case SaveOffset():
                access.require_reader()
            case Forget(_, names, instances) if access.produce and names == tuple(map(nameless_name, instances)):
                pass  # its own: by another session than theirs, where somebody staged
            case Status():
                pass
            case _:
                access.require_admin(_ADMIN[type(asked)])

    def judge(self, session: Session, frames: Iterable[Frame]) -> tuple[list[Frame], list[RefusedAnswer]]:
        """Which of the frames the session's client may write, and what it is told of the others: those of a producer whose epoch it
        did not open here, but for a lane, where no epochs are opened, and those of topics that are not for it.
        """
        good: list[Frame] = []
        refused: list[RefusedAnswer] = []
        topics, producers, lane = session.topics, session.producers, session.form == SUBMIT_UNORDERED
        for frame in frames:
            if not lane and frame.producer not in producers:
                code, reason = "producer", "this session did not open an epoch of the producer: open it, then send again"
            elif frame.topic in topics or not (reason := self._reason(session, frame.topic)):
                good.append(frame)
                continue
            else:
                code = WHAT if frame.topic in self._topics() else "topic"
            refused.append(RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry=False))
        if denied := sum(answer.code == WHAT for answer in refused):
            self._tokens.count(WHAT, denied)
        return good, refused

    def _reason(self, session: Session, number: int) -> str:
        """Why the session's client may not write to a topic, empty if it may."""
        topic = self._topics().get(number)
        if topic is None:
            return f"topic {number} is not known here: open it, then send again"  # whether it is for them is not known either
        if not session.access.may_produce(topic.name):
            return f"token {session.access.name!r} may not write to topic {topic.name!r}"
        session.topics.add(number)
        return ""

    def over(self, sessions: Iterable[Session]) -> list[Session]:
        """Sessions of those who are not let in any more; what the others may do by now is noted. Called once in a while."""
        self._tokens.refresh()
        self._keys.refresh()
        gone: list[Session] = []
        for session in sessions:
            if not session.access.sha256:
                continue
            access = self._tokens.still(session.access)
            if access is None:
                gone.append(session)
            elif access != session.access:
                session.access = access
                session.topics.clear()
                session.producers.clear()  # it opens them again, where it still may
        return gone

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {"tokens": len(self._tokens), "trouble": self._tokens.trouble, "refused": dict(self._tokens.refused)}
