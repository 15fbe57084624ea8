"""Tests of the configuration file: valid files load, and all mistakes are reported at once, each with location,
problem and remedy.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.support.certificates import certificate
from tutti import limits
from tutti.errors import ConfigError
from tutti.security.user_files import parse_toml
from tutti_gateway.config import Address, Config, advice, check_config, load_config, parse_config, unknown_hosts
from tutti_gateway.config.model import PRESETS
from tutti_gateway.transport.keys import generate

GOOD = 'name = "jfk"\ndata = "data/jfk"\nlisten = "127.0.0.1:7400"\n'
CONF = Path(__file__).parents[3] / "conf"


def mistakes_of(text: str) -> list[str]:
    config, mistakes = parse_config(text)
    assert (config is None) == bool(mistakes)
    return [mistake.text("f.toml") for mistake in mistakes]


def test_three_lines_are_enough_and_the_rest_has_defaults() -> None:
    config, mistakes = parse_config(GOOD)
    assert not mistakes
    assert config is not None
    assert config.client_address == Address("127.0.0.1", 7400)
    assert (config.reads_address.port, config.admin_address.port) == (7402, 7403)
    assert config.advertised_address == config.client_address
    assert config.timers.heartbeat_ms == PRESETS["lan"]["heartbeat_ms"]


def test_sizes_and_times_may_have_units() -> None:
    text = """
        [timers]
        heartbeat_ms = "50ms"
        tick_ms = "10s"
        [log]
        segment_bytes = "64MiB"
        disk_low_bytes = "1GB"
        [retention]
        bytes = "1TB"
        time = "90d"
        [limits]
        undecided_bytes = "128MiB"
        [multicast]
        datagram_bytes = "2KiB"
        bytes_per_second = "50MB"
    """
    config, mistakes = parse_config(GOOD + text)
    assert not mistakes
    assert config is not None
    assert (config.timers.heartbeat_ms, config.timers.tick_ms) == (50, 10_000)
    assert (config.log.segment_bytes, config.log.disk_low_bytes) == (64 * 2**20, 10**9)
    assert (config.retention.bytes, config.retention.time_us) == (10**12, 90 * 86_400 * 1_000_000)
    assert config.limits.undecided_bytes == 128 * 2**20
    assert (config.multicast.datagram_bytes, config.multicast.bytes_per_second) == (2048, 50_000_000)


def test_ports_can_be_set_alone() -> None:
    config, _ = parse_config(GOOD + "[ports]\nreads = 9000\n")
    assert config is not None
    assert (config.reads_address.port, config.admin_address.port) == (9000, 7403)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_fills_the_timers_and_each_can_be_set_alone(preset: str) -> None:
    config, _ = parse_config(GOOD + f'[group]\npreset = "{preset}"\n[timers]\ntick_ms = 5000\n')
    assert config is not None
    assert config.timers.heartbeat_ms == PRESETS[preset]["heartbeat_ms"]
    assert config.timers.tick_ms == 5000


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("nme = 1\n", "f.toml:4: nme", "did you mean name?"),
        ('preset = "lan"\n', "f.toml:4: preset", "it belongs in [group]"),
        ("[log]\nsegment_byte = 1\n", "f.toml:5: log.segment_byte", "did you mean segment_bytes?"),
        ('[security]\ntokens = "a\\u0000b"\n', "f.toml:5: security.tokens is 'a\\x00b'", "no path, name or address can"),
        ("[log]\nzzz = 1\n", "f.toml:5: log.zzz", "[log] takes segment_bytes, first_segment_bytes, prepared_segments"),
        ("[zzz]\na = 1\n", "f.toml:4: zzz", "the top of the file (before any [table]) takes name, data"),
        ("[log]\nsegment_bytes = 5\n", "f.toml:5: log.segment_bytes is 5", "it takes 32MiB to 2047MiB, as"),
        ('[log]\nsegment_bytes = "1"\n', "f.toml:5: log.segment_bytes is '1'", "it takes 32MiB to 2047MiB, as"),
        ('[log]\nvote_mark = "x"\n', "f.toml:5: log.vote_mark is 'x'", '"strict" or "timely"'),
        ("[retention]\nbytes = 70000000\n", "f.toml:5: retention.bytes is 70000000, less than two segments", "at least 256MiB"),
        (
            '[retention]\ntime = "7 days"\n',
            "f.toml:5: retention.time is '7 days'",
            "above 0 and a unit (ms, s, m, h, d), at most 36500d",
        ),
        ('[retention]\ntime = "0d"\n', "f.toml:5: retention.time is '0d'", "a whole number above 0"),
        ("[retention]\ntime = 7\n", "f.toml:5: retention.time is 7", "it takes a whole number with a unit (ms, s, m, h, d)"),
        (
            '[retention]\nkeep_for = ["archive"]\n',
            "f.toml:5: retention.keep_for has an effect only with a retention limit",
            "set retention.bytes or",
        ),
        (
            '[retention]\ntime = "1d"\nkeep_for = ["a", "b", "a"]\n',
            "f.toml:6: retention.keep_for has 'a' twice",
            "each reader once",
        ),
        ('[retention]\ntime = "1d"\nkeep_for = ["a b"]\n', "f.toml:6: retention.keep_for is 'a b'", "letters, digits"),
        ('[retention]\ntime = "99999d"\n', "f.toml:5: retention.time is '99999d'", "at most 36500d"),
        (
            '[log]\nsegment_bytes = "128MBit"\n',
            "f.toml:5: log.segment_bytes is '128MBit'",
            "it takes 32MiB to 2047MiB, as a whole number with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB) in",
        ),
        ('[log]\nsegment_bytes = "1KB"\n', "f.toml:5: log.segment_bytes is '1KB'", "it takes 32MiB to 2047MiB, as"),
        ('[retention]\nbytes = "70MB"\n', "f.toml:5: retention.bytes is '70MB', less than two segments (128MiB each)", "256MiB"),
        (
            '[timers]\ntick_ms = "2h"\n',
            "f.toml:5: timers.tick_ms is '2h'",
            "it takes 10ms to 1h, as a whole number with a unit (ms,",
        ),
        ('[limits]\nsessions = "1KB"\n', "f.toml:5: limits.sessions is '1KB'", "it takes a whole number from 1 to"),
        ("[security]\ninsecure = 1\n", "f.toml:5: security.insecure is 1", "true or false"),
        ("log = 3\n", "f.toml:4: log is 3", "make it a table, [log]"),
        ('[group]\nname = "a b"\n', "f.toml:5: group.name is 'a b'", "letters, digits"),
        ('[group]\ntransport = "udp"\n', "f.toml:5: group.transport is 'udp'", 'it takes "mesh" or "multicast"'),
        ('[multicast]\naddress = "10.0.0.1:7499"\n', "f.toml:5: multicast.address is '10.0.0.1:7499'", "an IPv4 multicast address"),
        ('[multicast]\naddress = "[ff15::1]:7499"\n', "f.toml:5: multicast.address is", "an IPv4 multicast address"),
        ('[multicast]\naddress = "239.1.1.1"\n', "f.toml:5: multicast.address is '239.1.1.1'", "write HOST:PORT"),
        ('[multicast]\ninterface = ""\n', "f.toml:5: multicast.interface is empty", "or remove the key"),
        ("[multicast]\nttl = 256\n", "f.toml:5: multicast.ttl is 256", "from 0 to 255"),
        ("[multicast]\ndatagram_bytes = 100\n", "f.toml:5: multicast.datagram_bytes is 100", "it takes 512B to 65507B, as"),
        (
            '[group]\ntransport = "multicast"\n[multicast]\ninterface = "eth0"\n',
            "f.toml:7: multicast.interface is 'eth0', where other hosts receive",
            "name keys in [security], or set insecure = true there",
        ),
        ('[group]\nmembers = "x"\n', "f.toml:5: group.members is 'x'", "a table of names and addresses"),
        ('[group]\nmembers = { lga = "127.0.0.1:1" }\n', "f.toml:5: group.members", "names lga, but not this gateway (jfk)"),
        ('[group]\nmembers = { jfk = "127.0.0.1:1" }\n', "f.toml:5: group.members.jfk", "this gateway is at '127.0.0.1:7400'"),
        ('[group]\nmembers = { jfk = "x" }\n', "f.toml:5: group.members.jfk is 'x'", "write HOST:PORT"),
        (
            '[group.members]\njfk = "127.0.0.1:7400"\nlga = "127.0.0.1:7401"\n',
            "f.toml:6: group.members.lga is '127.0.0.1:7401' and that of jfk is '127.0.0.1:7400'",
            "both use 127.0.0.1:7401 for clients or the group: give each gateway its own ports",
        ),
        (
            '[group.members]\nlga = "127.0.0.1:7400"\njfk = "127.0.0.1:7400"\n',
            "f.toml:6: group.members.jfk is '127.0.0.1:7400' and that of lga is '127.0.0.1:7400'",
            "both use 127.0.0.1:7400",
        ),
        (
            '[group]\nmembers = { jfk = "127.0.0.1:7400/7500" }\n',
            "f.toml:5: group.members.jfk is '127.0.0.1:7400/7500', with group port 7500, but the group port of this gateway is "
            "7401",
            'write "127.0.0.1:7400/7401" on every gateway, or remove ports.group',
        ),
        (
            '[group]\nmembers = { jfk = "127.0.0.1:7400" }\n[ports]\ngroup = 7500\n',
            "f.toml:5: group.members.jfk is '127.0.0.1:7400', with group port 7401, but the group port of this gateway is 7500",
            'write "127.0.0.1:7400/7500"',
        ),
        ('[group]\nmembers = { jfk = "127.0.0.1:7400/x" }\n', "f.toml:5: group.members.jfk is", "HOST:PORT/GROUP-PORT"),
        (
            '[group.members]\njfk = "127.0.0.1:7400"\nlga = "10.0.0.2:7400"\n',
            "f.toml:6: group.members.lga is '10.0.0.2:7400', on another host, and without keys nothing is encrypted",
            "`tutti keys new`",
        ),
        ('[security]\nsecret_key = "a"\n', "f.toml:4: security.public_keys is missing", "name both files, or none"),
        ('[security]\npublic_keys = "a"\n', "f.toml:4: security.secret_key is missing", "name both files, or none"),
        ('[security]\ntokens = "t"\n', "f.toml:5: security.tokens is set without keys", "name keys too"),
        ('[security]\ntls_key = "a"\n', "f.toml:4: security.tls_certificate is missing, but tls_key is set", "name both files"),
        ('[security]\nsecret_key = ""\npublic_keys = "a"\n', "f.toml:5: security.secret_key is empty", "`tutti keys new`"),
        ("[ports]\nadmin = 7400\n", "f.toml:5: ports.admin is 7400, the same as that of listen", "its own port"),
        ("[ports]\nadmin = 0\n", "f.toml:5: ports.admin is 0", "it takes a whole number from 1 to 65535"),
        (
            "[log]\nfirst_segment_bytes = 1000\nprepared_segments = 0\n",
            "f.toml:5: log.first_segment_bytes is 1000",
            "write 1MiB to 128MiB (segment_bytes), or 0",
        ),
        (
            "[log]\nfirst_segment_bytes = 67108864\nsegment_bytes = 33554432\nprepared_segments = 0\n",
            "f.toml:5: log.first_segment_bytes is 67108864",
            "write 1MiB to 32MiB (segment_bytes), or 0",
        ),
        (
            "[log]\nfirst_segment_bytes = 3145728\n",
            "f.toml:4: log.prepared_segments is 2, but segments with first_segment_bytes = 3MiB have several sizes",
            "write 0, or remove first_segment_bytes",
        ),
        (
            '[log]\nfirst_segment_bytes = "4MiB"\nprepared_segments = 0\n',
            "f.toml:5: log.first_segment_bytes is '4MiB', so a later segment would have 16MiB, the size of the reserve",
            "choose a size that does not double to 16MiB, such as 3MiB",
        ),
        ("[timers]\ntick_ms = 100\n", "f.toml:5: timers.tick_ms is 100, below heartbeat_ms = 200", "as long as a heartbeat"),
        (
            "[limits]\nundecided_bytes = 500000000\n",
            "f.toml: log.disk_low_bytes is 256MiB, less than the sum of undecided_bytes and the reserve (493MiB)",
            "make it at least 493MiB",
        ),
        ("[limits]\nundecided_bytes = 1000000000\n", "f.toml:5: limits.undecided_bytes is 1000000000", "4MiB to 512MiB"),
        ("[limits]\nproducers = 10000000\n", "f.toml:5: limits.producers is 10000000", "from 1 to 200000"),
        (
            "[limits]\nproducers = 200000\n",
            "f.toml:4: limits need 1123MiB of memory at full load (sessions = 4096, producers = 200000, "
            "topics = 10000, undecided_bytes = 64MiB), but a gateway may use 1024MiB",
            "make one of them smaller",
        ),
        ("[timers]\nheartbeat_ms = 100000\n", "f.toml:5: timers.heartbeat_ms is 100000", "it takes 10ms to 10s, as a whole number"),
        (
            "[log]\ndisk_low_bytes = 70000000\n",
            "f.toml:5: log.disk_low_bytes is 70000000, less than the sum of undecided_bytes",
            "make it at least",
        ),
        (
            'advertise = "0.0.0.0:7400"\n',
            "f.toml:4: advertise is '0.0.0.0:7400', and no other host can connect to 0.0.0.0: use the host name",
            "",
        ),
        ('advertise = "[::]:7400"\n', "f.toml:4: advertise is '[::]:7400', and no other host can connect to ::", "use the host"),
        (
            '[group.members]\njfk = "127.0.0.1:7400"\nlga = "0.0.0.0:7410"\n',
            "f.toml:6: group.members.lga is '0.0.0.0:7410', and no other host can connect to 0.0.0.0",
            "use the host name",
        ),
        ('advertise = "nowhere"\n', "f.toml:4: advertise is 'nowhere'", "write HOST:PORT"),
    ],
)
def test_a_mistake_is_reported_with_location_problem_and_remedy(text: str, where: str, what: str) -> None:
    [said] = mistakes_of(GOOD + text)
    assert said.startswith(where)
    assert what in said


def members_text(count: int) -> str:
    others = "".join(f'g{number} = "127.0.0.1:{7400 + 10 * number}"\n' for number in range(1, count))
    return f'[group.members]\njfk = "127.0.0.1:7400"\n{others}'


def test_a_group_has_no_more_gateways_than_a_roster() -> None:
    assert mistakes_of(GOOD + members_text(limits.ROSTER_MAX)) == []
    [said] = mistakes_of(GOOD + members_text(limits.ROSTER_MAX + 1))
    assert said.startswith("f.toml:4: group.members names 64 gateways: name at most 63")


def test_a_gateways_own_addresses_equal_those_in_the_member_list() -> None:
    alone, _ = parse_config(GOOD + "[ports]\ngroup = 9000\n")
    among, _ = parse_config(GOOD + members_text(3))
    assert alone is not None
    assert among is not None
    assert alone.founders == {"jfk": "127.0.0.1:7400/9000"}
    assert (alone.group_address, among.group_address) == (Address("127.0.0.1", 9000), Address("127.0.0.1", 7401))
    assert among.founders == among.group.members


def test_a_group_port_of_its_own_is_part_of_the_address() -> None:
    assert mistakes_of(GOOD + '[ports]\ngroup = 9000\n[group]\nmembers = { jfk = "127.0.0.1:7400/9000" }\n') == []


@pytest.mark.parametrize(("count", "warned"), [(1, False), (2, True), (3, False), (4, True), (7, False)])
def test_an_even_number_of_founding_gateways_is_accepted_with_a_warning(count: int, warned: bool) -> None:
    config, mistakes = parse_config(GOOD + members_text(count))
    assert not mistakes
    assert config is not None
    said = [one.text("f.toml") for one in advice(config)]
    assert bool(said) == warned
    if warned:
        assert said[0].startswith(f"f.toml: group.members names {count} gateways, an even number: ")
        assert "name an odd number" in said[0]
    assert advice(config, begun=True) == []


@pytest.mark.parametrize("missing", ["name", "data", "listen"])
def test_a_missing_key_is_named_with_an_example(missing: str) -> None:
    text = "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(missing))
    [said] = mistakes_of(text)
    assert said.startswith(f"f.toml: {missing} is missing: add it, for example {missing} = ")


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "10.0.0.1:7400", "ingest.example:7400", "[::]:7400"])
def test_listening_beyond_the_machine_must_be_explicit(listen: str) -> None:
    text = f'name = "jfk"\ndata = "d"\nlisten = "{listen}"\nadvertise = "10.0.0.1:7400"\n'
    [said] = mistakes_of(text)
    assert said.startswith(f"f.toml:3: listen is '{listen}', which other hosts can reach")
    assert "[security] insecure = true" in said
    config, mistakes = parse_config(text + "[security]\ninsecure = true\n")
    assert not mistakes
    assert config is not None
    assert advice(config) == []


def test_with_keys_other_hosts_may_connect_and_the_unprotected_ports_are_named(tmp_path: Path) -> None:
    generate(tmp_path / "keys", ["jfk", "lga", "ewr"])
    file = tmp_path / "f.toml"
    file.write_text(
        'name = "jfk"\ndata = "d"\nlisten = "10.0.0.1:7400"\n'
        '[group]\nmembers = { jfk = "10.0.0.1:7400", lga = "10.0.0.2:7400", ewr = "10.0.0.3:7400" }\n'
        '[security]\nsecret_key = "keys/jfk.secret"\npublic_keys = "keys/group.keys"\n'
    )
    config, [refused, *_] = check_config(file)
    assert config is None
    assert "listen is '10.0.0.1:7400', which other hosts can reach, and not every port is protected" in refused.text(str(file))
    assert "name tokens (`tutti tokens new`; tokens), a certificate (tls_certificate, tls_key) in [security]" in refused.do
    file.write_text(f"{file.read_text()}insecure = true\n")
    config, mistakes = check_config(file)
    assert not mistakes
    assert config is not None
    assert config.security.secret_key == str(tmp_path / "keys" / "jfk.secret")
    [said] = advice(config)
    assert said.key == "listen"
    assert "keys alone protect only the port between gateways" in said.what
    assert "7400, 7402, 7403" in said.do


def test_members_without_listed_keys_are_named(tmp_path: Path) -> None:
    """A gateway with keys of its own would run, and connect to no other."""
    generate(tmp_path / "keys", ["jfk"])
    file = tmp_path / "f.toml"
    file.write_text(
        'name = "jfk"\ndata = "d"\nlisten = "127.0.0.1:7400"\n'
        '[group]\nmembers = { jfk = "127.0.0.1:7400", lga = "127.0.0.1:7410", ewr = "127.0.0.1:7420" }\n'
        '[security]\nsecret_key = "keys/jfk.secret"\npublic_keys = "keys/group.keys"\n'
    )
    config, mistakes = check_config(file)
    assert not mistakes
    assert config is not None
    [said] = advice(config, begun=True)
    assert said.key == "security.public_keys"
    assert said.what == f"{tmp_path}/keys/group.keys lists no key of lga, ewr, so these gateways and this one reject each other"
    generate(tmp_path / "keys", ["lga", "ewr"])
    assert advice(config) == []


@pytest.mark.parametrize(
    ("text", "interface"),
    [
        (GOOD, "127.0.0.1"),
        (GOOD.replace("127.0.0.1", "localhost"), "127.0.0.1"),
        (GOOD.replace("127.0.0.1", "[::1]"), ""),
        (GOOD + '[multicast]\ninterface = "lo"\n', "lo"),
    ],
)
def test_multicast_uses_the_listen_interface_by_default(text: str, interface: str) -> None:
    config, mistakes = parse_config(text + '[group]\ntransport = "multicast"\n')
    assert not mistakes
    assert config is not None
    assert config.multicast_interface == interface


def test_hosts_that_are_not_known_are_advised_of_by_name() -> None:
    config, _ = parse_config(
        'name = "jfk"\ndata = "d"\nlisten = "localhost:7400"\n[security]\ninsecure = true\n'
        '[group.members]\njfk = "localhost:7400"\nlga = "no-such-host.invalid:7400"\newr = "127.0.0.1:7420"\n'
    )
    assert config is not None
    [said] = unknown_hosts(config, 30.0)
    assert said.key == "group.members.lga"
    assert said.what.startswith("names host 'no-such-host.invalid', which this host cannot resolve (")


@pytest.mark.parametrize(
    ("secret", "public", "said"),
    [
        ("none", "group.keys", "none cannot be read (no such file or directory)"),
        ("jfk.secret", "none", "none cannot be read (no such file or directory)"),
        ("lga.secret", "group.keys", "is the secret key of 'lga', but this gateway is 'jfk'"),
        ("group.keys", "group.keys", "lists the public keys of a group and has no secret key"),
        ("jfk.secret", "jfk.secret", "has the secret key of a gateway"),
        ("group.keys", "jfk.secret", "secret_key and public_keys are swapped"),
    ],
)
def test_unusable_keys_are_reported_with_the_other_mistakes(tmp_path: Path, secret: str, public: str, said: str) -> None:
    generate(tmp_path, ["jfk", "lga"])
    file = tmp_path / "f.toml"
    file.write_text(GOOD + f'[security]\nsecret_key = "{secret}"\npublic_keys = "{public}"\n')
    config, [mistake] = check_config(file)
    assert config is None
    assert mistake.text("f.toml").startswith("f.toml:4: security names keys that cannot be used (")
    assert said in mistake.what


@pytest.mark.parametrize("listen", ["localhost:7400", "127.0.0.2:7400", "[::1]:7400"])
def test_loopback_needs_no_such_setting(listen: str) -> None:
    assert mistakes_of(f'name = "jfk"\ndata = "d"\nlisten = "{listen}"\n') == []


def test_all_interfaces_need_an_address_for_clients() -> None:
    said = mistakes_of('name = "jfk"\ndata = "d"\nlisten = "0.0.0.0:7400"\n[security]\ninsecure = true\n')
    assert said == ["f.toml: advertise is missing, and no other host can connect to 0.0.0.0: add HOST:PORT for clients"]


@pytest.mark.parametrize("listen", ["7400", "h:0", "h:65536", "h:x", ":7400", "::1:7400", "tutti://h:7400", "a b:7400"])
def test_an_invalid_address_is_refused(listen: str) -> None:
    [said] = mistakes_of(f'name = "jfk"\ndata = "d"\nlisten = "{listen}"\n')
    assert said.startswith(f"f.toml:3: listen is {listen!r}: write HOST:PORT")


def test_a_port_too_high_leaves_none_for_the_others() -> None:
    [said] = mistakes_of('name = "jfk"\ndata = "d"\nlisten = "127.0.0.1:65534"\n')
    assert "leaves no port for reads (65536): choose a port up to 65532" in said


def test_all_mistakes_are_reported_in_the_order_of_the_lines() -> None:
    said = mistakes_of('nme = "jfk"\ndata = 3\nlisten = "8.8.8.8:1"\n[log]\nvote_mark = "x"\n[timers]\ntick_ms = 50\n')
    places = [re.match(r"f\.toml(:\d)?: (\S+)", line) for line in said]
    found = [(place[1], place[2]) for place in places if place]
    assert found == [
        (None, "name"),
        (":1", "nme"),
        (":2", "data"),
        (":3", "listen"),
        (":5", "log.vote_mark"),
        (":7", "timers.tick_ms"),
    ]


def test_the_error_of_invalid_toml_names_the_line() -> None:
    [said] = mistakes_of(GOOD + "[log\n")
    assert said.startswith("f.toml:4: is not TOML (")
    assert said.endswith(': write `key = value`, text in "quotes", tables as [name]')


@pytest.mark.parametrize("value", ["128MB", "128 MB", "128MB  # large"])
def test_a_number_with_a_unit_needs_quotes(value: str) -> None:
    [said] = mistakes_of(GOOD + f"[log]\nsegment_bytes = {value}\n")
    assert said.startswith("f.toml:5: is not TOML (")
    assert said.endswith(': write a number with a unit in quotes: "128MB"')


@pytest.mark.parametrize("depth", [50, 500, 900, 5_000, 50_000])
@pytest.mark.parametrize(("opening", "inner", "closing"), [("[", "1", "]"), ("{a=", "1", "}"), ("a.", "a = 1", "")])
def test_too_deep_nesting_is_a_mistake_of_the_file(depth: int, opening: str, inner: str, closing: str) -> None:
    key = "" if opening == "a." else "name = "
    said = mistakes_of(GOOD.replace('name = "jfk"', "") + "\n" + key + opening * depth + inner + closing * depth + "\n")
    assert any("f.toml" in line for line in said)


@pytest.mark.parametrize("text", ["a." * 30_000 + "a = 1", "[" + "a." * 30_000 + "a]", "x = {" + "a." * 30_000 + "a = 1}"])
def test_a_key_of_thousands_of_parts_is_a_mistake_of_its_line(text: str) -> None:
    """Proves that the parser does not run: it needs a minute for 10,000 parts."""
    assert mistakes_of(GOOD + text) == ["f.toml:4: has a key of too many parts: no key has more than a table's name and its own"]
    with pytest.raises(ValueError, match=r"a key has more than 64 parts \(at line 1\)"):
        parse_toml(text)


def test_dots_in_text_and_comments_are_no_parts_of_keys() -> None:
    many = "members = {" + ", ".join(f'm{n} = "10.0.0.{n}:7400"' for n in range(100)) + "} # " + "." * 100
    assert len(parse_toml("[group]\n" + many)["group"]["members"]) == 100


def test_a_number_of_thousands_of_digits_is_a_mistake_of_the_file() -> None:
    [said] = mistakes_of(GOOD + "[log]\nsegment_bytes = " + "9" * 5_000)
    assert said.startswith("f.toml: has a value that cannot be read (")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read \(no such file or directory\): name a TOML file"):
        load_config(missing)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 8\)"):
        load_config(binary)


def test_the_mark_with_which_some_editors_begin_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(GOOD, "utf-8-sig")
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    assert load_config(file).name == "jfk"


def test_loading_reports_the_first_mistake_and_counts_the_others(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(GOOD + "a = 1\nb = 2\n")
    with pytest.raises(ConfigError, match=r"g\.toml:4: a is not known: .* \(and 1 more, see `tutti config check .*g\.toml`\)"):
        load_config(file)


@pytest.mark.parametrize("file", sorted(CONF.glob("*.toml")), ids=lambda file: file.name)
def test_the_examples_load(file: Path, tmp_path: Path) -> None:
    generate(tmp_path / "keys", ["jfk", "lga", "ewr"])
    certificate(tmp_path / "tls", "jfk")
    (tmp_path / "tokens.toml").write_text("[tokens]\n")
    here = tmp_path / file.name
    here.write_text(file.read_text())
    config, mistakes = check_config(here)
    assert not mistakes
    assert config is not None


def keys_of(kind: type[msgspec.Struct]) -> set[str]:
    fields = msgspec.structs.fields(kind)
    tables = [field.type for field in fields if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)]
    return {field.name for field in fields if field.type not in tables}.union(*map(keys_of, tables))


def test_the_full_example_has_every_key() -> None:
    shown = re.findall(r"^#?(\w+) = ", (CONF / "gateway.toml").read_text(), flags=re.MULTILINE)
    assert set(shown) == keys_of(Config)


def test_defaults_in_the_full_example_are_the_defaults() -> None:
    text = (CONF / "gateway.toml").read_text()
    shown, mistakes = parse_config(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))
    plain, _ = parse_config(text)
    assert not mistakes
    assert shown is not None
    assert plain is not None
    assert shown.advertise == "127.0.0.1:7400"
    assert shown.group.members == {"jfk": "127.0.0.1:7400", "lga": "127.0.0.1:7410", "ewr": "127.0.0.1:7420"}
    assert (shown.ports.group, shown.ports.reads, shown.ports.admin) == (7401, 7402, 7403)
    assert (shown.security.secret_key, shown.security.public_keys) == ("keys/jfk.secret", "keys/group.keys")
    assert (shown.security.tokens, shown.security.has_tls) == ("tokens.toml", True)
    assert shown.security.open_metrics == plain.security.open_metrics
    assert shown.security.insecure == plain.security.insecure
    assert shown.multicast.interface == "127.0.0.1"
    assert msgspec.structs.replace(shown.multicast, interface=None) == plain.multicast
    for table in ("timers", "log", "retention", "limits"):
        assert getattr(shown, table) == getattr(plain, table)
    assert (shown.group.name, shown.group.preset) == (plain.group.name, plain.group.preset)


def test_retention_is_a_size_a_time_both_or_none() -> None:
    config, _ = parse_config(GOOD)
    assert config is not None
    assert (config.retention.bytes, config.retention.time_us) == (0, 0)
    config, _ = parse_config(GOOD + '[retention]\nbytes = 268435456\ntime = "36h"\n')
    assert config is not None
    assert (config.retention.bytes, config.retention.time_us) == (268435456, 36 * 3_600_000_000)
