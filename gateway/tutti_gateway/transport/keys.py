"""CURVE keys of gateways: how they are made, which files hold them, and who is who by its key.

Every gateway has a secret file of its own, which only its user may read, and the same public file, which lists the public key of
every gateway of the group. Both are TOML, so that they can be read, compared and put under configuration management:

    # jfk.secret                               # group.keys
    gateway = "jfk"                            [gateways]
    public = "<40 characters>"                 jfk = "<40 characters>"
    secret = "<40 characters>"                 lga = "<40 characters>"

Keys are Z85 text (RFC 32 of ZeroMQ); CURVE is CurveZMQ (RFC 26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from nacl import bindings

from tutti import limits
from tutti.data.names import check_name
from tutti.errors import ConfigError, UsageError
from tutti.runtime.fsync import make_directory
from tutti.security.key_files import FileWatcher, Stamp, check_private, file_stamp, monotonic_us, read_toml, replace_text, write_new
from tutti.zmtp import z85

SECRET_ENDING = ".secret"  # noqa: S105 - of a file name
PUBLIC_FILE = "group.keys"
KEY_CHARACTERS = 40
_MADE_BY = "`tutti keys new` makes keys, `security.secret_key` and `security.public_keys` name the files"


class Keys(NamedTuple):
    """The pair of one gateway, as Z85 text."""

    gateway: str
    public: str
    secret: str

    def __repr__(self) -> str:
        """Without the secret: this may land in a log."""
        return f"<keys of {self.gateway}, public {self.public}>"


def new_keys(gateway: str) -> Keys:
    """A new pair.

    Raises:
        UsageError: that is no name of a gateway.
    """
    public, secret = bindings.crypto_box_keypair()
    return Keys(check_name("gateway", gateway), z85.encode(public), z85.encode(secret))


def generate(directory: str | Path, gateways: Iterable[str]) -> list[Path]:
    """Make keys for gateways: a secret file for each in `directory`, and their lines in its `group.keys`, made or added to. Returns
    the files written, the public one last.

    Raises:
        UsageError: a name is wrong or comes twice.
        ConfigError: one of them has keys there already, or a file there is malformed; nothing was written then.
        OSError: a file cannot be written.
    """
    names = [check_name("gateway", name) for name in gateways]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"name each gateway once, not {', '.join(names) or 'none'}")
    place = Path(directory)
    secrets, public = [place / f"{name}{SECRET_ENDING}" for name in names], place / PUBLIC_FILE
    known = read_public(public) if public.exists() else {}
    for name, path in zip(names, secrets, strict=True):
        if path.exists() or name in known:
            raise ConfigError(
                f"{name} has keys already ({path if path.exists() else public}): a gateway that is given new ones must get them "
                f"on every host; take the old ones away first"
            )
    if len(known) + len(names) > limits.ROSTER_MAX:
        raise ConfigError(f"{public}: {len(known) + len(names)} gateways, and a group has at most {limits.ROSTER_MAX}")
    make_directory(place, 0o777)
    made = [new_keys(name) for name in names]
    for keys, path in zip(made, secrets, strict=True):
        write_new(path, _secret_text(keys), 0o600)
    write_public(public, known | {keys.gateway: keys.public for keys in made})
    return [*secrets, public]


def write_public(path: str | Path, keys: Mapping[str, str]) -> None:
    """Write the public file, whole or not at all: a gateway may read it at any moment.

    Raises:
        OSError: it cannot be written.
    """
    replace_text(path, _public_text(keys), 0o644)


def _secret_text(keys: Keys) -> str:
    return (
        f"# The secret key of gateway {keys.gateway}. It belongs on its host alone, readable by the user that runs it.\n"
        f'gateway = "{keys.gateway}"\npublic = "{keys.public}"\nsecret = "{keys.secret}"\n'
    )


def _public_text(keys: Mapping[str, str]) -> str:
    lines = "".join(f'"{name}" = "{key}"\n' if "." in name else f'{name} = "{key}"\n' for name, key in sorted(keys.items()))
    said = "# Public keys of the gateways of a group: the same file on every host. Whose key is not here is not let in.\n"
    return f"{said}[gateways]\n{lines}"


def read_secret(path: str | Path) -> Keys:
    """The pair in a secret file.

    What it holds is judged before its mode: a file that holds no secret need not be hidden.

    Raises:
        ConfigError: it cannot be read, it is malformed, or others may read it; the message says what to do.
    """
    tree, found = read_toml(path, _MADE_BY)
    if _lists_gateways(tree):
        raise ConfigError(
            f"{path} lists the public keys of a group and holds no secret: name this gateway's own {SECRET_ENDING} file"
        )
    if not _holds_secret(tree):
        raise ConfigError(f"{path} is no secret key of a gateway (it has {_listed(tree)}): make one with `tutti keys new`")
    gateway, public, secret = (tree[key] for key in ("gateway", "public", "secret"))
    if not isinstance(gateway, str):
        raise ConfigError(f"{path}: gateway is {gateway!r}: it takes the gateway's name")
    for what, key in (("public", public), ("secret", secret)):
        if not _is_key(key):
            raise ConfigError(f"{path}: {what} is no key: it takes {KEY_CHARACTERS} characters of Z85; was the file cut or edited?")
    if z85.encode(bindings.crypto_scalarmult_base(z85.decode(secret))) != public:
        raise ConfigError(f"{path}: public and secret are not of one pair: make a new file with `tutti keys new`")
    check_private(path, found)
    return Keys(gateway, public, secret)


def read_public(path: str | Path) -> dict[str, str]:
    """Gateway -> public key, from a public file.

    Raises:
        ConfigError: it cannot be read or is malformed, or two gateways have one key; the message says what to do.
    """
    tree, _ = read_toml(path, _MADE_BY)
    if _holds_secret(tree):
        raise ConfigError(
            f"{path} holds the secret key of a gateway and no list: name the file that all gateways have alike, {PUBLIC_FILE}"
        )
    table = tree.get("gateways")
    if not _lists_gateways(tree) or not isinstance(table, dict) or not table:
        raise ConfigError(f'{path} lists no public keys (it has {_listed(tree)}): write [gateways] and name = "key" below it')
    if len(table) > limits.ROSTER_MAX:
        raise ConfigError(f"{path} lists {len(table)} gateways, and a group has at most {limits.ROSTER_MAX}: take old ones out")
    owner: dict[str, str] = {}
    for name, key in table.items():
        try:
            check_name("gateway", name)
        except UsageError as error:
            raise ConfigError(f"{path}: {error}") from None
        if not _is_key(key):
            raise ConfigError(f"{path}: the key of {name} is {key!r}: it takes {KEY_CHARACTERS} characters of Z85")
        if key in owner:
            raise ConfigError(f"{path}: {owner[key]} and {name} have the same key: give each its own with `tutti keys new`")
        owner[key] = name
    return table


def read_either(path: str | Path) -> dict[str, str]:
    """Gateway -> public key, from a public or a secret file, whatever its name.

    Raises:
        ConfigError: as `read_secret` and `read_public` do.
    """
    tree, _ = read_toml(path, _MADE_BY)
    if not _holds_secret(tree):
        return read_public(path)
    own = read_secret(path)
    return {own.gateway: own.public}


def _check_not_swapped(secret_path: str | Path, public_path: str | Path) -> None:
    if _lists_gateways(read_toml(secret_path, _MADE_BY)[0]) and _holds_secret(read_toml(public_path, _MADE_BY)[0]):
        raise ConfigError(
            f"secret_key and public_keys are swapped ({secret_path} lists public keys, {public_path} holds a secret): let each "
            "name the other's file"
        )


def _lists_gateways(tree: Mapping[str, object]) -> bool:
    return set(tree) == {"gateways"}


def _holds_secret(tree: Mapping[str, object]) -> bool:
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
    """The own pair, and the public keys of the group; these are read again when their file changed, so that gateways can be added
    while all run.

    Attributes:
        own: this gateway's pair.
        trouble: why the public file could not be read again, empty if it could. What it said before holds on.
    """

    def __init__(
        self,
        own: Keys,
        public_path: str | Path,
        public: dict[str, str],
        seen: Stamp,
        clock_us: Callable[[], int] = monotonic_us,
    ) -> None:
        """Put it together; `open` reads and checks the files. `seen` is the public one's stamp as it was before it was read."""
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
        """The keys of a gateway; `clock_us` tells for how long their file has stood still.

        Raises:
            ConfigError: a file is wrong, or they are not of this gateway and its group; the message says which and what to do.
        """
        _check_not_swapped(secret_path, public_path)
        own = read_secret(secret_path)
        if own.gateway != gateway:
            raise ConfigError(
                f"{secret_path} is the secret key of {own.gateway!r} and this gateway is {gateway!r}: name its own file"
            )
        seen = file_stamp(public_path)
        public = read_public(public_path)
        if gateway not in public:
            raise ConfigError(
                f"{public_path} lists {', '.join(public)} and not this gateway ({gateway}): add its public key, {own.public}"
            )
        if public[gateway] != own.public:
            raise ConfigError(
                f"{public_path} has another key for {gateway} than {secret_path}, whose public key is {own.public}: the others "
                f"would not let it in; write that one into the public file on every host"
            )
        return cls(own, public_path, public, seen, clock_us)

    def name_of(self, public: str) -> str:
        """The gateway with that public key, empty if nobody's is known to be."""
        return self._names.get(public, "")

    def public_of(self, gateway: str) -> str:
        """The public key of a gateway, empty if it is not listed."""
        return self._public.get(gateway, "")

    def refresh(self) -> bool:
        """Read the public file again if it changed; whether what it says is new."""
        seen = self._changes.look()
        if seen is None:
            return False
        try:
            public = read_public(self._path)
        except ConfigError as error:  # whatever it is may pass though the file stays as it is: it is read again
            self.trouble = f"the public keys that were read before still hold: {error}"
            return False
        self._changes.take(seen)
        self.trouble = ""
        changed = public != self._public
        self._public = public
        self._names = {key: name for name, key in public.items()}
        return changed
