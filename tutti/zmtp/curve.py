"""The form of what goes over an encrypted connection: ZMTP 3.1 with the mechanism CURVE (RFC 26, CurveZMQ), without I/O.

Behind the greeting four commands make a key that only these two ends have, for this connection alone; then each frame travels in
a box of its own, sealed under a number that only goes up: what was recorded and is sent again opens nothing.

```
caller   HELLO     its key of this connection, and that it means the listener whose key it knows
listener WELCOME   its own key of this connection
caller   INITIATE  its lasting key, and that both keys are its own
listener READY                                             or ERROR, where that key is not let in
both     MESSAGE   number u64, box of (flags u8, data)
```

A ZeroMQ socket speaks the same. One thing is added, where that says nothing: the listener's greeting ends with the beginning of its
lasting public key, so that a caller who knows those of several gateways knows which one is meant. Who lies there cannot be spoken
with: the box of HELLO opens for the owner of a key that the caller knows, or for nobody.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple

from nacl import bindings
from nacl.exceptions import CryptoError

from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.zmtp import z85
from tutti.zmtp.framing import (
    COMMAND,
    GREETING,
    HANDSHAKE_BYTES_MAX,
    LENGTH,
    LONG,
    MORE,
    Handshake,
    Mismatch,
    OtherKey,
    Rejected,
    frame,
    head,
    properties,
    property_of,
)

KEY_BYTES = 32
MECHANISM = b"CURVE".ljust(20, b"\0")
HINT = slice(33, 49)  # of the greeting
FIRST_BYTES = 12  # of a greeting: what is said before the other end has said what it wants
MESSAGE_OVERHEAD = 8 + 8 + bindings.crypto_box_BOXZEROBYTES + 1  # the command's name, number, box, flags
_MECHANISM_AT, _MECHANISM_END, _GREETING_BYTES = 12, 32, 64
_COOKIE_BYTES = 96
_NAME = b"\x07MESSAGE"
_ERROR = b"\x05ERROR"
_NOT_ADMITTED = frame(_ERROR + b"\x03400", COMMAND)  # the status code of ZAP (RFC 27), as ZeroMQ says it
_FROM_CALLER, _FROM_LISTENER = b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES"
_MORE_INSIDE, _COMMAND_INSIDE = 1, 2


class Pair(NamedTuple):
    """A public key and its secret."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret: this may land in a log."""
        return "<keys>"


def pair_of(public: str, secret: str) -> Pair:
    """A pair from its text (Z85)."""
    return Pair(z85.decode(public), z85.decode(secret))


def new_pair() -> Pair:
    """A new pair."""
    return Pair(*bindings.crypto_box_keypair())


class Box:
    """What one end seals and opens once the handshake is over."""

    __slots__ = ("_key", "_mine", "_number", "_seen", "_theirs")

    def __init__(self, key: bytes, mine: bytes, theirs: bytes, number: int, seen: int) -> None:
        """`key` is shared; `number` was used last by this end, `seen` by the other."""
        self._key, self._mine, self._theirs = key, mine, theirs
        self._number, self._seen = number, seen

    def seal(self, flags: int, data: Buffer) -> bytes:
        """A frame as it goes over the wire."""
        return b"".join(self.sealed(flags, data))

    def sealed(self, flags: int, data: Buffer) -> tuple[bytes, bytes]:
        """A frame as it goes over the wire: what precedes its box, and the box."""
        self._number += 1
        number = LENGTH.pack(self._number)
        inside = bytes((_MORE_INSIDE * bool(flags & MORE) | _COMMAND_INSIDE * bool(flags & COMMAND),))
        box = bindings.crypto_box_easy_afternm(b"".join((inside, data)), self._mine + number, self._key)
        return b"".join((head(len(_NAME) + len(number) + len(box), 0), _NAME, number)), box

    def open(self, body: Buffer) -> tuple[int, Buffer]:
        """The flags and the data of a frame's body.

        Raises:
            FormatError: it was not sealed by the other end, for this place.
        """
        number = LENGTH.unpack_from(body, 8)[0] if len(body) >= MESSAGE_OVERHEAD and body[:8] == _NAME else 0
        if number <= self._seen:
            raise FormatError("a frame is not sealed, or came before")
        self._seen = number
        try:
            inside = bindings.crypto_box_open_easy_afternm(bytes(body[16:]), self._theirs + bytes(body[8:16]), self._key)
        except CryptoError:
            raise FormatError("a frame does not open: it was changed on its way, or is of another connection") from None
        told = inside[0]
        return MORE * bool(told & _MORE_INSIDE) | COMMAND * bool(told & _COMMAND_INSIDE), memoryview(inside)[1:]


class _Shaking:
    """What both ends' handshakes have in common.

    Attributes:
        box: once it is over, if what comes is encrypted.
    """

    def __init__(self) -> None:
        self._came = b""
        self.box: Box | None = None
        self._said: list[bytes] = []

    def said(self) -> bytes:
        """What is to be sent now; asked after each `take`."""
        said, self._said = b"".join(self._said), []
        return said

    def _command(self) -> bytes | None:
        """The next command behind the greeting, None while it is not complete."""
        came = self._came
        if len(came) < 2:
            return None
        length, start = came[1], 2
        if came[0] == COMMAND | LONG:
            if len(came) < 1 + LENGTH.size:
                return None
            length, start = LENGTH.unpack_from(came, 1)[0], 1 + LENGTH.size
        elif came[0] != COMMAND:
            raise Mismatch(f"no command follows the greeting (flags {came[0]:#x})")
        if start + length > HANDSHAKE_BYTES_MAX:
            raise Mismatch(f"a command of {length} bytes follows the greeting")
        if len(came) < start + length:
            return None
        self._came = came[start + length :]
        return came[start : start + length]


class Listening(_Shaking):
    """The handshake of the end that listens. Without `admits` it completes with every caller, one that does not encrypt included:
    what that one may do is decided elsewhere.

    Attributes:
        identity: what the caller wants to be known as.
        peer: the caller's lasting public key, empty for one that does not encrypt.
    """

    def __init__(self, own: Pair, admits: Callable[[bytes], bool] | None = None) -> None:
        """Wait for a caller. `admits` returns whether a lasting public key is let in; empty: a caller that does not encrypt."""
        super().__init__()
        self._own = own
        self._admits = admits
        self._plain: Handshake | None = None
        self._greeted = False
        self._theirs = b""  # the caller's key of this connection
        self._mine = Pair(b"", b"")
        self._cookie = b""
        self.identity = self.peer = b""
        self._greeting = greeting(serves=True, hint=own.public)
        if admits is None:
            self._say_greeting(FIRST_BYTES)  # the mechanism is the one that the caller wants
        else:
            self._say_greeting()

    def _say_greeting(self, length: int = _GREETING_BYTES) -> None:
        """Say more of it."""
        said, self._greeting = self._greeting[:length], self._greeting[length:]
        self._said.append(said)

    def take(self, data: bytes) -> bytes | None:
        """Take what came; what is behind the handshake once that is over, None before.

        Raises:
            Mismatch: it is no handshake, or the caller is not admitted. What `said` returns then tells the caller.
        """
        if self._plain is None:
            self._came += data
            data = b""
            if not self._greeted and not self._greet():
                return None
        if self._plain is not None:
            rest = self._plain.take(data or self._came)
            self.identity = self._plain.identity
            return rest
        if not self._cookie:
            command = self._command()
            if command is None:
                return None
            self._hello(command)
        command = self._command()
        if command is None:
            return None
        self._initiate(command)
        return self._came

    def _greet(self) -> bool:
        """Whether all of the greeting is there. What is said depends on what the caller wants."""
        came = self._came
        if came[:1] != GREETING[:1] or (len(came) > 9 and came[9] != GREETING[9]):
            raise Mismatch("what comes first is no greeting")
        if len(came) < _MECHANISM_END:
            return False
        if came[_MECHANISM_AT:_MECHANISM_END] != MECHANISM:
            if self._admits is not None and not self._admits(b""):
                raise Mismatch("the other end does not encrypt")
            self._plain = Handshake(b"ROUTER", b"DEALER")
            self._said.append(self._plain.said()[FIRST_BYTES:])
            self._greeted = True
            return True
        self._say_greeting()
        if len(came) < _GREETING_BYTES:
            return False
        self._came = came[_GREETING_BYTES:]
        self._greeted = True
        return True

    def _hello(self, command: bytes) -> None:
        if len(command) != 200 or not command.startswith(b"\x05HELLO\x01\x00"):
            raise Mismatch("the other end does not begin with HELLO")
        self._mine = new_pair()
        self._theirs, number, box = command[80:112], command[112:120], command[120:]
        _opened(bindings.crypto_box_open, box, b"CurveZMQHELLO---" + number, self._theirs, self._own.secret)
        self._cookie = secrets.token_bytes(_COOKIE_BYTES)
        nonce = secrets.token_bytes(16)
        welcome = bindings.crypto_box(self._mine.public + self._cookie, b"WELCOME-" + nonce, self._theirs, self._own.secret)
        self._said.append(frame(b"\x07WELCOME" + nonce + welcome, COMMAND))

    def _initiate(self, command: bytes) -> None:
        if len(command) < 9 + _COOKIE_BYTES + 8 or not command.startswith(b"\x08INITIATE"):
            raise Mismatch("the other end does not go on with INITIATE")
        at = 9 + _COOKIE_BYTES
        if not secrets.compare_digest(command[9:at], self._cookie):
            raise Mismatch("the other end speaks of another connection")
        number = command[at : at + 8]
        key = bindings.crypto_box_beforenm(self._theirs, self._mine.secret)
        told = _opened(bindings.crypto_box_open_afternm, command[at + 8 :], b"CurveZMQINITIATE" + number, key)
        if len(told) < 128:
            raise Mismatch("the other end does not say who it is")
        peer, nonce, vouch = told[:32], told[32:48], told[48:128]
        vouched = _opened(bindings.crypto_box_open, vouch, b"VOUCH---" + nonce, peer, self._mine.secret)
        if not secrets.compare_digest(vouched, self._theirs + self._own.public):
            raise Mismatch("the other end is not who it says")
        self.identity = properties(told[128:], b"DEALER").get(b"identity", b"")
        if self._admits is not None and not self._admits(peer):
            self._said.append(_NOT_ADMITTED)
            raise Mismatch("the other end has a key that is not let in")
        self.peer = peer
        metadata = property_of(b"Socket-Type", b"ROUTER") + property_of(b"Identity", b"")
        self.box = Box(key, _FROM_LISTENER, _FROM_CALLER, 1, LENGTH.unpack(number)[0])
        one = LENGTH.pack(1)
        self._said.append(
            frame(b"\x05READY" + one + bindings.crypto_box_afternm(metadata, b"CurveZMQREADY---" + one, key), COMMAND)
        )


class Calling(_Shaking):
    """The handshake of who calls: with one of the listeners whose keys it knows, or with nobody."""

    def __init__(self, servers: Iterable[bytes], own: Pair | None = None, identity: bytes = b"") -> None:
        """Call.

        Args:
            servers: public keys of which the listener has to have one.
            own: the lasting keys; some that nobody knows, where it does not matter who calls.
            identity: what this end wants to be known as.
        """
        super().__init__()
        self._servers = list(servers)
        self._own = own or new_pair()
        self._identity = identity
        self._mine = new_pair()
        self._server = self._welcomed = self._key = b""
        self._greeted = False
        self._said.append(greeting(serves=False))

    def take(self, data: bytes) -> bytes | None:
        """Take what came; what is behind the handshake once that is over, None before.

        Raises:
            Mismatch: the other end does not encrypt.
            OtherKey: it has none of the keys.
            Rejected: it does not let this one in.
        """
        self._came += data
        if not self._greeted:
            if not self._greet():
                return None
            self._hello()
        while (command := self._command()) is not None:
            if command.startswith(_ERROR):
                raise Rejected(f"the other end refuses: {command[len(_ERROR) + 1 : 100]!r}")
            if not self._welcomed:
                self._welcome(command)
            else:
                self._ready(command)
                return self._came
        return None

    def _greet(self) -> bool:
        came = self._came
        if came[:1] != GREETING[:1] or (len(came) > 9 and came[9] != GREETING[9]):
            raise Mismatch("what comes first is no greeting")
        if len(came) < _GREETING_BYTES:
            return False
        if came[_MECHANISM_AT:_MECHANISM_END] != MECHANISM:
            raise Mismatch("the gateway does not encrypt, and nothing is said in the clear by who has credentials")
        hint = came[HINT]
        known = [key for key in self._servers if key[: len(hint)] == hint]
        if not known and (any(hint) or len(self._servers) != 1):
            raise OtherKey("the gateway has another key than those that are known here: is it one of the group?")
        self._server = known[0] if known else self._servers[0]
        self._came = came[_GREETING_BYTES:]
        self._greeted = True
        return True

    def _hello(self) -> None:
        one = LENGTH.pack(1)
        box = bindings.crypto_box(bytes(64), b"CurveZMQHELLO---" + one, self._server, self._mine.secret)
        self._said.append(frame(b"\x05HELLO\x01\x00" + bytes(72) + self._mine.public + one + box, COMMAND))

    def _welcome(self, command: bytes) -> None:
        if len(command) != 168 or not command.startswith(b"\x07WELCOME"):
            raise Mismatch("the other end does not answer with WELCOME")
        told = _opened(bindings.crypto_box_open, command[24:], b"WELCOME-" + command[8:24], self._server, self._mine.secret)
        self._welcomed, cookie = told[:32], told[32:]
        self._key = bindings.crypto_box_beforenm(self._welcomed, self._mine.secret)
        nonce, two = secrets.token_bytes(16), LENGTH.pack(2)
        vouch = bindings.crypto_box(self._mine.public + self._server, b"VOUCH---" + nonce, self._welcomed, self._own.secret)
        metadata = property_of(b"Socket-Type", b"DEALER") + property_of(b"Identity", self._identity)
        box = bindings.crypto_box_afternm(self._own.public + nonce + vouch + metadata, b"CurveZMQINITIATE" + two, self._key)
        self._said.append(frame(b"\x08INITIATE" + cookie + two + box, COMMAND))

    def _ready(self, command: bytes) -> None:
        if len(command) < 14 or not command.startswith(b"\x05READY"):
            raise Mismatch("the other end does not end with READY")
        number = command[6:14]
        properties(_opened(bindings.crypto_box_open_afternm, command[14:], b"CurveZMQREADY---" + number, self._key), b"ROUTER")
        self.box = Box(self._key, _FROM_CALLER, _FROM_LISTENER, 2, LENGTH.unpack(number)[0])


def greeting(*, serves: bool, hint: bytes = b"") -> bytes:
    """What is said first by who encrypts; a listener `serves`."""
    head = GREETING[:_MECHANISM_AT] + MECHANISM + bytes((serves,)) + hint[: HINT.stop - HINT.start]
    return head.ljust(_GREETING_BYTES, b"\0")


def _opened(open_box: Callable[..., bytes], box: bytes, *rest: bytes) -> bytes:
    try:
        return open_box(box, *rest)
    except (CryptoError, ValueError, TypeError):
        raise Mismatch("a command of the handshake does not open: the other end has another key") from None
