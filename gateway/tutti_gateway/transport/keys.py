"""CURVE keys of gateways: creating keys, the key files, and finding the gateway of a key.

Each gateway has its own secret file, which only its user can read. All gateways have the same public file with the public key of
every gateway of the group. Both are TOML, so that operators can read them, compare them, and manage them as configuration:

    # jfk.secret                               # group.keys
    gateway = "jfk"                            [gateways]
    public = "<40 characters>"                 jfk = "<40 characters>"
    secret = "<40 characters>"                 lga = "<40 characters>"

Keys are Z85 text (ZeroMQ RFC 32) for CurveZMQ (RFC 26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from nacl import bindings

from tutti import limits
from tutti.data.names import check_name
from tutti.errors import ConfigError, UsageError, WrongFile
from tutti.runtime.durable_files import make_directory
from tutti.security.user_files import (
    FileWatcher,
    Stamp,
    check_private,
    file_stamp,
    monotonic_us,
    read_toml,
    replace_text,
    write_new,
)
from tutti.zmtp import z85

SECRET_ENDING = ".secret"  # noqa: S105 - the ending of a file name
PUBLIC_FILE = "group.keys"
KEY_CHARACTERS = 40
_MADE_BY = "`tutti keys new` makes keys, `security.secret_key` and `security.public_keys` name the files"


class Keys(NamedTuple):
    """Key pair of one gateway, as Z85 text."""

    gateway: str
    public: str
    secret: str

    def __repr__(self) -> str:
        """Return a representation without the secret, because the text may be logged."""
        return f"<keys of {self.gateway}, public {self.public}>"


def new_keys(gateway: str) -> Keys:
    """Return a new key pair.

    Raises:
        UsageError: the text is not a valid gateway name.
    """
    public, secret = bindings.crypto_box_keypair()
    return Keys(check_name("gateway", gateway), z85.encode(public), z85.encode(secret))


def generate(directory: str | Path, gateways: Iterable[str]) -> list[Path]:
    """Create keys for gateways in `directory`: a secret file for each gateway, and a line for each in a new or existing
    `group.keys`.

    Return the paths of the written files, the public one last.

    Raises:
        UsageError: a name is invalid, or is given twice.
        ConfigError: a gateway already has keys there, or a file there is malformed; no file is written.
        OSError: a file cannot be written.
    """
    names = [check_name("gateway", name) for name in gateways]
    if not names:
        raise UsageError("no gateway is named: give the name of each gateway that needs keys")
    if len(set(names)) != len(names):
        raise UsageError(f"a gateway is named twice ({', '.join(names)}): give each gateway name once")
    folder = Path(directory)
    secrets, public = [folder / f"{name}{SECRET_ENDING}" for name in names], folder / PUBLIC_FILE
    known = read_public(public) if public.exists() else {}
    for name, path in zip(names, secrets, strict=True):
        if path.exists() or name in known:
            raise ConfigError(
                f"{name} has keys already ({path if path.exists() else public}): to replace them, first remove the old keys "
                f"on every host"
            )
    if len(known) + len(names) > limits.ROSTER_MAX:
        raise ConfigError(f"{public} would list {len(known) + len(names)} gateways, above the limit of {limits.ROSTER_MAX}")
    make_directory(folder, 0o777)  # readable by all users (subject to the umask), because each secret file has its own mode
    created = [new_keys(name) for name in names]
    for keys, path in zip(created, secrets, strict=True):
        # Each secret file is created with O_EXCL, so two runs at the same time cannot overwrite each other's secret keys.
        write_new(path, _secret_text(keys), 0o600)
    write_public(public, known | {keys.gateway: keys.public for keys in created})
    return [*secrets, public]


def write_public(path: str | Path, keys: Mapping[str, str]) -> None:
    """Write the public file atomically, because a gateway may read it at any moment.

    Raises:
        OSError: it cannot be written.
    """
    replace_text(path, _public_text(keys), 0o644)


def _secret_text(keys: Keys) -> str:
    return (
        f"# The secret key of gateway {keys.gateway}. Keep it only on the gateway's host, readable only by the user that runs it.\n"
        f'gateway = "{keys.gateway}"\npublic = "{keys.public}"\nsecret = "{keys.secret}"\n'
    )


def _public_text(keys: Mapping[str, str]) -> str:
    # TOML reads a dot in a bare key as a nested table, so names with dots are quoted.
    lines = "".join(f'"{name}" = "{key}"\n' if "." in name else f'{name} = "{key}"\n' for name, key in sorted(keys.items()))
    header = "# Public keys of the gateways of a group: the same file on every host. Gateways with other keys are rejected.\n"
    return f"{header}[gateways]\n{lines}"


def read_secret(path: str | Path) -> Keys:
    """Return the key pair in a secret file.

    The content is checked before the mode of the file, because only a file with a secret must be private.

    Raises:
        ConfigError: the file cannot be read, is malformed, or is readable by other users; the message has the remedy.
    """
    tree, found = read_toml(path, _MADE_BY)
    if _is_public_file(tree):
        raise ConfigError(
            f"{path} lists the public keys of a group and has no secret key: use this gateway's {SECRET_ENDING} file here"
        )
    if not _is_secret_file(tree):
        what = f"{path} is not a secret key of a gateway (it has {_listed(tree)}): create one with `tutti keys new`"
        raise WrongFile(what, str(path), "secret")
    gateway, public, secret = (tree[key] for key in ("gateway", "public", "secret"))
    if not isinstance(gateway, str):
        raise ConfigError(f"{path}: gateway is {gateway!r}: set it to the gateway's name")
    for what, key in (("public", public), ("secret", secret)):
        if not _is_key(key):
            raise ConfigError(
                f"{path}: {what} is not a key of {KEY_CHARACTERS} Z85 characters: check if the file was truncated or edited"
            )
    # The public key is a function of the secret key, so a file with keys that do not match is detected before it is used.
    if z85.encode(bindings.crypto_scalarmult_base(z85.decode(secret))) != public:
        raise ConfigError(f"{path}: public and secret are not a pair: create a new file with `tutti keys new`")
    check_private(path, found)
    return Keys(gateway, public, secret)


def read_public(path: str | Path) -> dict[str, str]:
    """Return the public keys in a public file, by gateway.

    Raises:
        ConfigError: the file cannot be read, is malformed, or lists a key twice; the message has the remedy.
    """
    tree, _ = read_toml(path, _MADE_BY)
    if _is_secret_file(tree):
        raise ConfigError(f"{path} has the secret key of a gateway: name the file that lists the public keys, {PUBLIC_FILE}")
    table = tree.get("gateways")
    if not _is_public_file(tree) or not isinstance(table, dict) or not table:
        what = f'{path} lists no public keys (it has {_listed(tree)}): write [gateways] and NAME = "KEY" below it'
        raise WrongFile(what, str(path), "keys")
    if len(table) > limits.ROSTER_MAX:
        raise ConfigError(f"{path} lists {len(table)} gateways, above the limit of {limits.ROSTER_MAX}: remove old ones")
    owner: dict[str, str] = {}
    for name, key in table.items():
        try:
            check_name("gateway", name)
        except UsageError as error:
            raise ConfigError(f"{path}: {error}") from None
        if not _is_key(key):
            raise ConfigError(f"{path}: the key of {name} is {key!r}: a key has {KEY_CHARACTERS} Z85 characters")
        # A key identifies its gateway (transport, T13), so two names with one key could each act as the other.
        if key in owner:
            raise ConfigError(f"{path}: {owner[key]} and {name} have the same key: give each its own with `tutti keys new`")
        owner[key] = name
    return table


def read_either(path: str | Path) -> dict[str, str]:
    """Return the public keys in a public or a secret file, by gateway.

    Raises:
        ConfigError: the file is neither a valid public nor a valid secret file.
    """
    tree, _ = read_toml(path, _MADE_BY)
    if not _is_secret_file(tree):
        return read_public(path)
    own = read_secret(path)
    return {own.gateway: own.public}


def _check_not_swapped(secret_path: str | Path, public_path: str | Path) -> None:
    if _is_public_file(read_toml(secret_path, _MADE_BY)[0]) and _is_secret_file(read_toml(public_path, _MADE_BY)[0]):
        raise ConfigError(
            f"secret_key and public_keys are swapped ({secret_path} lists public keys, {public_path} has a secret): exchange the "
            "two paths"
        )


def _is_public_file(tree: Mapping[str, object]) -> bool:
    return set(tree) == {"gateways"}


def _is_secret_file(tree: Mapping[str, object]) -> bool:
    return set(tree) == {"gateway", "public", "secret"}


def _is_key(value: object) -> bool:
    if not isinstance(value, str) or len(value) != KEY_CHARACTERS:
        return False
    try:
        z85.decode(value)
    except ValueError:
        return False
    return True


def _listed(tree: Mapping[str, object]) -> str:
    return ", ".join(list(tree)[:5])[:100] or "nothing"


class Keyring:
    """A gateway's own key pair, and the public keys of the group.

    The public file is read again after a change, so that gateways can be added without a restart.

    Attributes:
        own: key pair of this gateway.
        trouble: error of the last reload, after which the earlier keys stay valid; empty if the reload succeeded.
    """

    def __init__(
        self,
        own: Keys,
        public_path: str | Path,
        public: dict[str, str],
        seen: Stamp,
        clock_us: Callable[[], int] = monotonic_us,
    ) -> None:
        """Use keys that `open` has read and checked. `seen` is the stamp that the public file had before it was read."""
        self.own = own
        self.trouble = ""
        self._path = Path(public_path)
        self._changes = FileWatcher(public_path, seen, clock_us)
        self._public = public
        self._names = {key: name for name, key in public.items()}

    @classmethod
    def open(
        cls, secret_path: str | Path, public_path: str | Path, gateway: str, clock_us: Callable[[], int] = monotonic_us
    ) -> Keyring:
        """Read and check the keys of a gateway; `clock_us` returns the monotonic time in microseconds.

        Raises:
            ConfigError: a file is invalid, or does not belong to this gateway; the message has the remedy.
        """
        # Swapped paths are found first, because each file alone would get an error with the wrong remedy.
        _check_not_swapped(secret_path, public_path)
        own = read_secret(secret_path)
        if own.gateway != gateway:
            raise ConfigError(
                f"{secret_path} is the secret key of {own.gateway!r}, but this gateway is {gateway!r}: use the file of {gateway!r}"
            )
        seen = file_stamp(public_path)  # taken before the read, so that a write during the read counts as a change
        public = read_public(public_path)
        if gateway not in public:
            raise ConfigError(
                f"{public_path} lists {', '.join(public)} and not this gateway ({gateway}): add its public key, {own.public}"
            )
        if public[gateway] != own.public:
            raise ConfigError(
                f"{public_path} has another key for {gateway} than {secret_path}, so the other gateways would reject {gateway}: "
                f"write {gateway}'s public key, {own.public}, into the public file on every host"
            )
        return cls(own, public_path, public, seen, clock_us)

    def name_of(self, public: str) -> str:
        """Return the name of the gateway that has a public key; empty if the key is not listed."""
        return self._names.get(public, "")

    def public_of(self, gateway: str) -> str:
        """Return the public key of a gateway; empty if the gateway is not listed."""
        return self._public.get(gateway, "")

    def refresh(self) -> bool:
        """Read the public file again if it changed. Return True if the keys changed."""
        seen = self._changes.check()
        if seen is None:
            return False
        try:
            public = read_public(self._path)
        except ConfigError as error:  # the cause may be temporary: without `mark_read`, the next check reads the file again
            self.trouble = f"the public keys read before stay valid: {error}"
            return False
        self._changes.mark_read(seen)
        self.trouble = ""
        changed = public != self._public
        self._public = public
        self._names = {key: name for name, key in public.items()}
        return changed
