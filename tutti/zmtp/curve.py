"""CURVE security mechanism of ZMTP (RFC 26, CurveZMQ), without I/O.

After the greeting, four commands negotiate a key for this connection only. Each frame is then sent in a NaCl box with an increasing
nonce, so a recorded frame cannot be replayed.

```
client  HELLO     transient public key, and a box that only the expected server can open
server  WELCOME   transient public key
client  INITIATE  permanent public key, and a vouch that binds it to the transient one
server  READY                                                     or ERROR if it does not accept the key
both    MESSAGE   nonce u64, box of (flags u8, content)
```

The bytes are the same as those of a ZeroMQ socket, with one addition: the server's greeting ends with the first bytes of its
permanent public key, in a part that RFC 37 leaves unused. With this hint, a client that knows the keys of several gateways chooses
the right key. A forged hint gains no access, because only the owner of the key can open the box in HELLO.
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
    GREETING_BYTES,
    LENGTH,
    MECHANISM_AT,
    MORE,
    HandshakeError,
    NullHandshake,
    Rejected,
    UnknownServerKey,
    check_signature,
    decode_properties,
    encode_property,
    frame,
    frame_header,
    split_command,
)

KEY_BYTES = 32
MECHANISM = b"CURVE".ljust(20, b"\0")
KEY_HINT = slice(33, 49)  # position of the hint in the greeting's filler, which RFC 37 leaves unused
GREETING_PREFIX_BYTES = 12  # signature and version, which a server can send before it knows the client's mechanism
MESSAGE_OVERHEAD = 8 + 8 + bindings.crypto_box_BOXZEROBYTES + 1  # name of the command, nonce, MAC of the box, flags
_MECHANISM_END = MECHANISM_AT + len(MECHANISM)
_COOKIE_BYTES = 96
_MESSAGE = b"\x07MESSAGE"
_ERROR = b"\x05ERROR"
_ERROR_NOT_ACCEPTED = frame(_ERROR + b"\x03400", COMMAND)  # 400 is ZAP's status code (RFC 27), which libzmq also sends
_CLIENT_NONCE, _SERVER_NONCE = b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES"
_MORE_FLAG, _COMMAND_FLAG = 1, 2


class KeyPair(NamedTuple):
    """A public key and its secret key."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Return a representation without the secret, because the text may be logged."""
        return "<keys>"


def key_pair_from_text(public: str, secret: str) -> KeyPair:
    """Return a key pair from Z85 text."""
    return KeyPair(z85.decode(public), z85.decode(secret))


def new_key_pair() -> KeyPair:
    """Return a new random key pair."""
    return KeyPair(*bindings.crypto_box_keypair())


class Box:
    """Encrypts and decrypts the frames of one connection after the handshake."""

    __slots__ = ("_receive_nonce", "_receive_prefix", "_send_nonce", "_send_prefix", "_shared_key")

    def __init__(self, key: bytes, send_prefix: bytes, receive_prefix: bytes, send_nonce: int, receive_nonce: int) -> None:
        """Use the key that both ends share.

        Args:
            key: shared key of the two transient key pairs, precomputed.
            send_prefix: first 16 bytes of this end's nonces.
            receive_prefix: first 16 bytes of the peer's nonces.
            send_nonce: last nonce that this end used.
            receive_nonce: last nonce that the peer used.
        """
        self._shared_key, self._send_prefix, self._receive_prefix = key, send_prefix, receive_prefix
        self._send_nonce, self._receive_nonce = send_nonce, receive_nonce

    def seal(self, flags: int, data: Buffer) -> bytes:
        """Return an encrypted frame for the wire."""
        return b"".join(self.seal_parts(flags, data))

    def seal_parts(self, flags: int, data: Buffer) -> tuple[bytes, bytes]:
        """Return an encrypted frame as two buffers, header and box, so that a large box is not copied again."""
        self._send_nonce += 1
        short_nonce = LENGTH.pack(self._send_nonce)
        plain = bytes((_MORE_FLAG * bool(flags & MORE) | _COMMAND_FLAG * bool(flags & COMMAND),))
        box = bindings.crypto_box_easy_afternm(b"".join((plain, data)), self._send_prefix + short_nonce, self._shared_key)
        return b"".join((frame_header(len(_MESSAGE) + len(short_nonce) + len(box), 0), _MESSAGE, short_nonce)), box

    def open(self, body: Buffer) -> tuple[int, Buffer]:
        """Return the flags and the content of a received frame body.

        Raises:
            FormatError: the peer did not encrypt the frame, or the frame is a replay.
        """
        short_nonce = LENGTH.unpack_from(body, 8)[0] if len(body) >= MESSAGE_OVERHEAD and body[:8] == _MESSAGE else 0
        if short_nonce <= self._receive_nonce:  # increasing nonces make replays detectable (RFC 26)
            raise FormatError("a frame is not encrypted, or is a replay")
        self._receive_nonce = short_nonce
        try:
            plain = bindings.crypto_box_open_easy_afternm(
                bytes(body[16:]), self._receive_prefix + bytes(body[8:16]), self._shared_key
            )
        except CryptoError:
            raise FormatError("a frame cannot be decrypted: it was modified on its way, or belongs to another connection") from None
        flags = plain[0]
        return MORE * bool(flags & _MORE_FLAG) | COMMAND * bool(flags & _COMMAND_FLAG), memoryview(plain)[1:]


class _CurveHandshake:
    """Base class of the server side and the client side of the CURVE handshake.

    Attributes:
        box: encryption of the connection, set after the handshake; None if the client does not encrypt.
    """

    def __init__(self) -> None:
        self._received = b""
        self.box: Box | None = None
        self._outgoing: list[bytes] = []

    def data_to_send(self) -> bytes:
        """Return the bytes to send now; call this after each `receive_data`."""
        data, self._outgoing = b"".join(self._outgoing), []
        return data

    def _next_command(self) -> bytes | None:
        """Return the next complete command after the greeting, else None."""
        found = split_command(self._received)
        if found is None:
            return None
        command, self._received = found
        return command


class CurveServerHandshake(_CurveHandshake):
    """The server side of a handshake.

    Without `accepts_key`, the handshake succeeds for every client, even for a client that does not encrypt. The caller must then
    authorise the client itself.

    Attributes:
        identity: routing id that the client requests.
        peer_key: the client's permanent public key, empty for a client that does not encrypt.
    """

    def __init__(self, own: KeyPair, accepts_key: Callable[[bytes], bool] | None = None) -> None:
        """Wait for a client.

        Args:
            own: permanent key pair of the server.
            accepts_key: returns True to accept a client by its permanent public key, empty for a client that does not encrypt.
        """
        super().__init__()
        self._own = own
        self._accepts_key = accepts_key
        self._null: NullHandshake | None = None
        self._greeting_received = False
        self._peer_transient = b""  # the client's transient public key
        self._transient = KeyPair(b"", b"")
        self._cookie = b""
        self.identity = self.peer_key = b""
        self._greeting = greeting(as_server=True, key_hint=own.public)
        if accepts_key is None:
            # only the prefix, because the rest depends on the client's mechanism, CURVE or NULL
            self._send_greeting(GREETING_PREFIX_BYTES)
        else:
            self._send_greeting()

    def _send_greeting(self, length: int = GREETING_BYTES) -> None:
        """Queue the next bytes of the greeting."""
        data, self._greeting = self._greeting[:length], self._greeting[length:]
        self._outgoing.append(data)

    def receive_data(self, data: bytes) -> bytes | None:
        """Process received bytes. Return None until the handshake is complete, and then the bytes after it.

        Raises:
            HandshakeError: the bytes are not a handshake, or the server does not accept the key; send `data_to_send`, which has the
                reason, before closing the connection.
        """
        if self._null is None:
            self._received += data
            data = b""
            if not self._greeting_received and not self._receive_greeting():
                return None
        if self._null is not None:
            rest = self._null.receive_data(data or self._received)
            self.identity = self._null.identity
            return rest
        if not self._cookie:
            command = self._next_command()
            if command is None:
                return None
            self._receive_hello(command)
        command = self._next_command()
        if command is None:
            return None
        self._receive_initiate(command)
        return self._received

    def _receive_greeting(self) -> bool:
        """Return True when the client's greeting is complete; then queue the rest of the server's greeting, with the same
        mechanism.
        """
        received = self._received
        check_signature(received)
        if len(received) < _MECHANISM_END:
            return False
        if received[MECHANISM_AT:_MECHANISM_END] != MECHANISM:
            # `accepts_key` gets an empty key for a client that does not encrypt.
            if self._accepts_key is not None and not self._accepts_key(b""):
                raise HandshakeError("the client does not encrypt, and this port requires a key")
            self._null = NullHandshake(b"ROUTER", b"DEALER")
            self._outgoing.append(self._null.data_to_send()[GREETING_PREFIX_BYTES:])  # the prefix was sent at once
            self._greeting_received = True
            return True
        self._send_greeting()
        if len(received) < GREETING_BYTES:
            return False
        self._received = received[GREETING_BYTES:]
        self._greeting_received = True
        return True

    def _receive_hello(self, command: bytes) -> None:
        if len(command) != 200 or not command.startswith(b"\x05HELLO\x01\x00"):
            raise HandshakeError("the first command is not HELLO")
        self._transient = new_key_pair()
        self._peer_transient, short_nonce, box = command[80:112], command[112:120], command[120:]
        _open_box(bindings.crypto_box_open, box, b"CurveZMQHELLO---" + short_nonce, self._peer_transient, self._own.secret)
        # In RFC 26, the cookie contains the server's state. Here the connection keeps the state, so random bytes are enough.
        self._cookie = secrets.token_bytes(_COOKIE_BYTES)
        long_nonce = secrets.token_bytes(16)
        welcome = bindings.crypto_box(
            self._transient.public + self._cookie, b"WELCOME-" + long_nonce, self._peer_transient, self._own.secret
        )
        self._outgoing.append(frame(b"\x07WELCOME" + long_nonce + welcome, COMMAND))

    def _receive_initiate(self, command: bytes) -> None:
        if len(command) < 9 + _COOKIE_BYTES + 8 or not command.startswith(b"\x08INITIATE"):
            raise HandshakeError("the second command is not INITIATE")
        offset = 9 + _COOKIE_BYTES
        if not secrets.compare_digest(command[9:offset], self._cookie):  # constant time, as for all secrets
            raise HandshakeError("INITIATE has the cookie of another connection")
        short_nonce = command[offset : offset + 8]
        key = bindings.crypto_box_beforenm(self._peer_transient, self._transient.secret)
        initiate = _open_box(bindings.crypto_box_open_afternm, command[offset + 8 :], b"CurveZMQINITIATE" + short_nonce, key)
        if len(initiate) < 128:
            raise HandshakeError("INITIATE is too short: it lacks the client's key")
        peer_key, long_nonce, vouch = initiate[:32], initiate[32:48], initiate[48:128]
        # The vouch proves that the owner of the permanent key chose this transient key for this server.
        vouched_keys = _open_box(bindings.crypto_box_open, vouch, b"VOUCH---" + long_nonce, peer_key, self._transient.secret)
        if not secrets.compare_digest(vouched_keys, self._peer_transient + self._own.public):
            raise HandshakeError("the vouch in INITIATE is for other keys")
        self.identity = decode_properties(initiate[128:], b"DEALER").get(b"identity", b"")
        if self._accepts_key is not None and not self._accepts_key(peer_key):
            self._outgoing.append(_ERROR_NOT_ACCEPTED)
            raise HandshakeError("the client's key is not accepted")
        self.peer_key = peer_key
        metadata = encode_property(b"Socket-Type", b"ROUTER") + encode_property(b"Identity", b"")
        self.box = Box(key, _SERVER_NONCE, _CLIENT_NONCE, 1, LENGTH.unpack(short_nonce)[0])
        one = LENGTH.pack(1)
        self._outgoing.append(
            frame(b"\x05READY" + one + bindings.crypto_box_afternm(metadata, b"CurveZMQREADY---" + one, key), COMMAND)
        )


class CurveClientHandshake(_CurveHandshake):
    """The client side of a handshake, with one of the servers whose public keys the client knows."""

    def __init__(self, servers: Iterable[bytes], own: KeyPair | None = None, identity: bytes = b"") -> None:
        """Prepare the greeting.

        Args:
            servers: permanent public keys; the server must have one of them.
            own: permanent key pair of the client; by default a random pair, for servers that accept every key.
            identity: routing id that this end requests.
        """
        super().__init__()
        self._server_keys = list(servers)
        self._own = own or new_key_pair()
        self._identity = identity
        self._transient = new_key_pair()
        self._server_key = self._server_transient = self._shared_key = b""
        self._greeting_received = False
        self._outgoing.append(greeting(as_server=False))

    def receive_data(self, data: bytes) -> bytes | None:
        """Process received bytes. Return None until the handshake is complete, and then the bytes after it.

        Raises:
            HandshakeError: the server does not encrypt, or violates the handshake.
            UnknownServerKey: the server has none of the keys in `servers`.
            Rejected: the server does not accept this client's key.
        """
        self._received += data
        if not self._greeting_received:
            if not self._receive_greeting():
                return None
            self._send_hello()
        while (command := self._next_command()) is not None:
            if command.startswith(_ERROR):
                raise Rejected(f"the server rejects the handshake with ERROR {command[len(_ERROR) + 1 : 100]!r}")
            if not self._server_transient:
                self._receive_welcome(command)
            else:
                self._receive_ready(command)
                return self._received
        return None

    def _receive_greeting(self) -> bool:
        received = self._received
        check_signature(received)
        if len(received) < GREETING_BYTES:
            return False
        if received[MECHANISM_AT:_MECHANISM_END] != MECHANISM:
            raise HandshakeError("the gateway does not encrypt, and credentials are never sent unencrypted")
        key_hint = received[KEY_HINT]
        # A plain ZeroMQ server sends no hint, which does not matter if only one key is known.
        known = [key for key in self._server_keys if key[: len(key_hint)] == key_hint]
        if not known and (any(key_hint) or len(self._server_keys) != 1):
            raise UnknownServerKey(
                "the gateway has none of the public keys that are known here: check that it belongs to the group"
            )
        self._server_key = known[0] if known else self._server_keys[0]
        self._received = received[GREETING_BYTES:]
        self._greeting_received = True
        return True

    def _send_hello(self) -> None:
        one = LENGTH.pack(1)
        box = bindings.crypto_box(bytes(64), b"CurveZMQHELLO---" + one, self._server_key, self._transient.secret)
        # The padding makes HELLO longer than WELCOME, so that a server cannot amplify an attack (RFC 26).
        self._outgoing.append(frame(b"\x05HELLO\x01\x00" + bytes(72) + self._transient.public + one + box, COMMAND))

    def _receive_welcome(self, command: bytes) -> None:
        if len(command) != 168 or not command.startswith(b"\x07WELCOME"):
            raise HandshakeError("the answer to HELLO is not WELCOME")
        welcome = _open_box(
            bindings.crypto_box_open, command[24:], b"WELCOME-" + command[8:24], self._server_key, self._transient.secret
        )
        self._server_transient, cookie = welcome[:32], welcome[32:]
        self._shared_key = bindings.crypto_box_beforenm(self._server_transient, self._transient.secret)
        long_nonce, two = secrets.token_bytes(16), LENGTH.pack(2)
        vouch = bindings.crypto_box(
            self._transient.public + self._server_key, b"VOUCH---" + long_nonce, self._server_transient, self._own.secret
        )
        metadata = encode_property(b"Socket-Type", b"DEALER") + encode_property(b"Identity", self._identity)
        box = bindings.crypto_box_afternm(
            self._own.public + long_nonce + vouch + metadata, b"CurveZMQINITIATE" + two, self._shared_key
        )
        self._outgoing.append(frame(b"\x08INITIATE" + cookie + two + box, COMMAND))

    def _receive_ready(self, command: bytes) -> None:
        if len(command) < 14 or not command.startswith(b"\x05READY"):
            raise HandshakeError("the answer to INITIATE is not READY")
        short_nonce = command[6:14]
        decode_properties(
            _open_box(bindings.crypto_box_open_afternm, command[14:], b"CurveZMQREADY---" + short_nonce, self._shared_key),
            b"ROUTER",
        )
        self.box = Box(self._shared_key, _CLIENT_NONCE, _SERVER_NONCE, 2, LENGTH.unpack(short_nonce)[0])


def greeting(*, as_server: bool, key_hint: bytes = b"") -> bytes:
    """Return the greeting of the CURVE mechanism (RFC 37); `key_hint` is the server's public key, whose first bytes are sent as a
    hint.
    """
    head = GREETING[:MECHANISM_AT] + MECHANISM + bytes((as_server,)) + key_hint[: KEY_HINT.stop - KEY_HINT.start]
    return head.ljust(GREETING_BYTES, b"\0")


def _open_box(open_box: Callable[..., bytes], box: bytes, *rest: bytes) -> bytes:
    try:
        return open_box(box, *rest)
    except (CryptoError, ValueError, TypeError):
        raise HandshakeError("a command of the handshake cannot be decrypted: the peer has another key") from None
