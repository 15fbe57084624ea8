"""Authentication and authorization of clients at the client port; used only by a gateway that has a token file.

If a connection is encrypted with the key of a gateway of the group, the client is authenticated as that gateway. The reads
processes of the gateways use these keys. Every other client sends a token in Hello. The session stores the permissions of its
token, so checking a batch takes one or two set lookups, and single records need no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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
from tutti.data.log_state import Topic
from tutti.data.names import is_nameless, nameless_name
from tutti.errors import NotAllowed
from tutti.security.tokens import NO_RIGHT, UNAUTHENTICATED, Access, Tokens, gateway_access
from tutti.zmtp import z85
from tutti_gateway.node.clients.control_requests import ControlRequest
from tutti_gateway.node.clients.sessions import Session
from tutti_gateway.transport.keys import Keyring

IN_THE_CLEAR = (
    "this gateway accepts only clients that encrypt and show a token: set TUTTI_TOKEN_FILE to the token file from its operator, "
    "or pass `credentials`; a client release without token support cannot connect"
)
_ADMIN: dict[type, str] = {
    Fence: "fence a producer",
    Forget: "delete producer state",
    Producers: "list all producers",
    Members: "list the members of the group",
    ChangeRoster: "change the roster",
    ForceRoster: "force the roster",
    Leave: "make a gateway leave",
}


class Authorizer:
    """Authenticates clients and authorizes their requests and batches. Owned by the driver's thread."""

    def __init__(
        self,
        tokens: Tokens,
        keys: Keyring,
        peer: Callable[[bytes], bytes | None],
        topics: Callable[[], Mapping[int, Topic]],
    ) -> None:
        """Create an authorizer.

        Args:
            tokens: the tokens of clients.
            keys: the public keys of gateways.
            peer: returns the public key with which a connection is encrypted, or None for an unencrypted connection.
            topics: returns the topics of the log, by number.
        """
        self._tokens = tokens
        self._keys = keys
        self._peer = peer
        self._topics = topics

    def access(self, routing: bytes, hello: Hello) -> Access:
        """Return the permissions of the client that sends Hello on a connection.

        Raises:
            NotAllowed: the connection is unencrypted, or its token is unknown.
        """
        key = self._peer(routing)
        # A token that was sent unencrypted is not accepted, even if it is valid.
        if key is None:
            self._tokens.count("clear")
            raise NotAllowed(IN_THE_CLEAR, UNAUTHENTICATED)
        gateway = self._keys.name_of(z85.encode(key))
        return gateway_access(gateway) if gateway else self._tokens.authenticate(hello.token)

    def check(self, session: Session, request: ControlRequest) -> None:
        """Check that the client of a session may send a request.

        Raises:
            NotAllowed: the client has no permission for this request.
        """
        try:
            self._check(session.access, request)
        except NotAllowed as error:
            self._tokens.count_refused(error)
            raise

    def _check(self, access: Access, request: ControlRequest) -> None:
        match request:
            case OpenTopic(_, name):
                access.require_produce(name)
            case OpenProducer(_, name, instance):
                access.require_producer(name)
                # The name of an unnamed producer is a hash of its instance id, so only its own client can show the matching id.
                if is_nameless(name) and name != nameless_name(instance) and not access.admin:
                    raise NotAllowed(
                        f"producer {name} is unnamed and belongs to another client: open a named producer, or a new unnamed one",
                        NO_RIGHT,
                    )
            case SaveOffset():
                access.require_reader()
            case Forget(_, names, instances) if access.produce and names == tuple(map(nameless_name, instances)):
                pass  # a client may delete its own unnamed producers in any session, because staging uses several sessions
            # Every client with a valid token may read the status, which contains no records.
            case Status():
                pass
            case _:
                access.require_admin(_ADMIN[type(request)])

    def authorize(self, session: Session, frames: Iterable[Frame]) -> tuple[list[Frame], list[RefusedAnswer]]:
        """Return the frames that the client of a session may write, and a refusal for each other frame.

        A frame is refused if the session's token has no right to write to the frame's topic. A frame for the ordered log is also
        refused if the session has not opened an epoch of the frame's producer. For lanes, clients open no epochs.
        """
        good: list[Frame] = []
        refused: list[RefusedAnswer] = []
        topics, producers, lane = session.topics, session.producers, session.form == SUBMIT_UNORDERED
        for frame in frames:
            if not lane and frame.producer not in producers:
                code, reason = "producer", "this session has not opened an epoch of the producer: open an epoch, then send again"
            # Usually this set lookup suffices: `_topic_refusal` adds each permitted topic to the set.
            elif frame.topic in topics or not (reason := self._topic_refusal(session, frame.topic)):
                good.append(frame)
                continue
            else:
                code = NO_RIGHT if frame.topic in self._topics() else "topic"
            refused.append(RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry=False))
        if denied := sum(answer.code == NO_RIGHT for answer in refused):
            self._tokens.count(NO_RIGHT, denied)
        return good, refused

    def _topic_refusal(self, session: Session, number: int) -> str:
        """Return the reason why the client of a session must not write to a topic; empty if it has the right to write there."""
        topic = self._topics().get(number)
        if topic is None:
            return f"topic {number} is not known here: open the topic, then send again"
        if not session.access.may_produce(topic.name):
            return f"token {session.access.name!r} may not write to topic {topic.name!r}: ask for a token that may"
        session.topics.add(number)  # numbers of topics are never reused, so the entry stays valid until permissions change
        return ""

    def expired(self, sessions: Iterable[Session]) -> list[Session]:
        """Return the sessions whose token has become invalid, and update the permissions of the others. Called once a second."""
        self._tokens.refresh()
        self._keys.refresh()
        expired: list[Session] = []
        for session in sessions:
            # Gateways authenticate by key and have no token that could expire.
            if not session.access.sha256:
                continue
            access = self._tokens.current_access(session.access)
            if access is None:
                expired.append(session)
            elif access != session.access:
                session.access = access
                session.topics.clear()
                session.producers.clear()  # the client must open its producers again, which checks the new permissions
        return expired

    def to_dict(self) -> dict[str, object]:
        """Return the values for the status: the number of tokens, and refusals by reason."""
        return {"tokens": len(self._tokens), "refused": dict(self._tokens.refused)}
