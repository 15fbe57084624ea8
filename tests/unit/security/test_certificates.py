"""Tests of certificates: a warning names each reason for which clients reject a certificate, and a good one has no warning."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.certificates import certificate
from tutti import limits
from tutti.errors import ConfigError
from tutti.security import certificates
from tutti.security.certificates import CertificateWatch, certificate_warnings, check_certificate
from tutti_gateway.config import advice, check_config

DAY_S = 86_400


def warnings(place: Path, host: str = "127.0.0.1") -> list[str]:
    return [f"{what}: {do}" for what, do in certificate_warnings(place / "a.pem", place / "a.key", host)]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], None]:
    """Make a certificate for 60 days, and set the clock to a number of days after its start."""
    certificate(tmp_path, "a")
    found = certificates._handshake(tmp_path / "a.pem", tmp_path / "a.key")
    start_s = ssl.cert_time_to_seconds(found["notBefore"])

    def at(days: float) -> None:
        monkeypatch.setattr("tutti.security.certificates.time.time", lambda: start_s + days * DAY_S)

    return at


@pytest.mark.parametrize(
    ("hosts", "host"),
    [
        ("IP:127.0.0.1,DNS:localhost", "127.0.0.1"),
        ("IP:127.0.0.1,DNS:localhost", "localhost"),
        ("DNS:*.example.org", "jfk.example.org"),
        ("IP:::1", "::1"),
    ],
)
def test_a_certificate_for_the_host_has_no_warning(tmp_path: Path, hosts: str, host: str) -> None:
    certificate(tmp_path, "a", hosts)
    assert warnings(tmp_path, host) == []


@pytest.mark.parametrize(
    ("hosts", "host", "said"),
    [
        (
            "IP:127.0.0.1,DNS:localhost",
            "10.0.0.1",
            "valid for IP Address 127.0.0.1, DNS localhost, but clients connect to 10.0.0.1",
        ),
        ("IP:10.0.0.1", "jfk.example.org", "valid for IP Address 10.0.0.1, but clients connect to jfk.example.org"),
        ("DNS:*.example.org", "example.org", "valid for DNS *.example.org, but clients connect to example.org"),
        ("", "tutti", "valid for no host, but clients connect to tutti"),  # clients ignore the common name
    ],
)
def test_a_certificate_for_other_hosts_is_named_with_the_missing_entry(tmp_path: Path, hosts: str, host: str, said: str) -> None:
    certificate(tmp_path, "a", hosts)
    [warning] = warnings(tmp_path, host)
    assert warning.startswith(f"{tmp_path}/a.pem is {said}, and will reject it: ")
    kind = "IP" if host[0].isdigit() else "DNS"
    assert f"with {kind}:{host} in its subjectAltName" in warning


@pytest.mark.parametrize(
    ("days", "said"),
    [(-1, " is not valid before "), (29, ""), (31, " within 30 days: install a new"), (61, " expired at ")],
)
def test_a_certificate_outside_of_its_time_is_named(tmp_path: Path, later: Callable[[float], None], days: float, said: str) -> None:
    later(days)
    assert [said in warning for warning in warnings(tmp_path)] == [True] * bool(said)


def test_an_expired_certificate_is_named_with_its_end_and_its_hosts(tmp_path: Path) -> None:
    certificate(tmp_path, "a", days=-1)
    expired, other_host = warnings(tmp_path, "10.0.0.1")
    assert expired.startswith(f"{tmp_path}/a.pem expired at ")
    assert other_host.startswith(f"{tmp_path}/a.pem is valid for IP Address 127.0.0.1, DNS localhost, but")


def test_a_certificate_of_an_authority_that_this_host_does_not_know_has_no_warning(tmp_path: Path) -> None:
    certificate(tmp_path, "authority", "")
    certificate(tmp_path, "a", authority="authority")
    assert warnings(tmp_path) == []


def test_a_certificate_for_clients_only_is_named_and_has_no_end(tmp_path: Path) -> None:
    certificate(tmp_path, "a", "IP:127.0.0.1", 60, "extendedKeyUsage=clientAuth")
    [warning] = warnings(tmp_path)
    assert warning.endswith("purpose): issue a certificate for a TLS server")
    assert CertificateWatch(tmp_path / "a.pem", tmp_path / "a.key", "127.0.0.1").expires_us == 0


@pytest.mark.parametrize("host", ["jfk..example.org", f"{'j' * 64}.example.org"])
def test_a_host_that_is_not_a_valid_name_is_named(tmp_path: Path, host: str) -> None:
    certificate(tmp_path, "a")
    assert warnings(tmp_path, host) == [f"clients cannot connect to {host!r}, which is not a valid host name: correct the name"]


def test_a_key_of_another_certificate_is_a_mistake(tmp_path: Path) -> None:
    certificate(tmp_path, "a")
    certificate(tmp_path, "b")
    with pytest.raises(ConfigError) as error:
        check_certificate(tmp_path / "a.pem", tmp_path / "b.key")
    assert str(error.value) == f"the key {tmp_path}/b.key does not belong to the certificate {tmp_path}/a.pem: give a matching pair"
    assert list(certificate_warnings(tmp_path / "a.pem", tmp_path / "b.key", "x")) == []


def test_a_gateway_is_advised_about_the_host_that_it_advertises(tmp_path: Path) -> None:
    certificate(tmp_path, "a")
    file = tmp_path / "g.toml"
    text = 'name = "jfk"\ndata = "d"\nlisten = "127.0.0.1:7400"\n{}[security]\ntls_certificate = "a.pem"\ntls_key = "a.key"\n'
    for advertise, count in (("", 0), ('advertise = "10.0.0.1:7400"\n', 1)):
        file.write_text(text.format(advertise))
        config, mistakes = check_config(file)
        assert not mistakes
        assert config is not None
        found = advice(config)
        assert [one.key for one in found] == ["security.tls_certificate"] * count
        assert all("clients connect to 10.0.0.1" in one.what for one in found)


def test_a_watch_reports_the_end_and_the_problems_as_time_passes(tmp_path: Path, later: Callable[[float], None]) -> None:
    later(1)
    watch = CertificateWatch(tmp_path / "a.pem", tmp_path / "a.key", "127.0.0.1")
    end = certificates._handshake(tmp_path / "a.pem", tmp_path / "a.key")["notAfter"]
    assert (watch.expires_us, watch.trouble) == (ssl.cert_time_to_seconds(end) * 1_000_000, "")
    later(40)
    watch.refresh()
    assert "within 30 days: install a new certificate" in watch.trouble
    later(61)
    watch.refresh()
    assert "expired at" in watch.trouble
    later(-1)  # the clock of this host is set back
    watch.refresh()
    assert "is not valid before" in watch.trouble


def test_a_watch_checks_a_certificate_only_after_a_change_or_an_hour(
    tmp_path: Path, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEYS_UNCHANGED_US", 0)
    later(1)
    watch = CertificateWatch(tmp_path / "a.pem", tmp_path / "a.key", "127.0.0.1")
    checks: list[object] = []
    monkeypatch.setattr(certificates, "check_certificate", lambda *paths: checks.append(paths))

    def checks_after(days: float) -> int:
        later(days)
        for _ in range(3):
            watch.refresh()
        return len(checks)

    assert checks_after(1 + 0.9 / 24) == 0
    assert checks_after(1 + 1.1 / 24) == 1
    (tmp_path / "a.pem").touch()
    assert checks_after(1 + 1.2 / 24) == 2


def test_a_watch_reads_a_renewed_certificate_and_keeps_the_end_of_the_old_one_if_the_new_one_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEYS_UNCHANGED_US", 0)
    certificate(tmp_path, "a", days=20)
    watch = CertificateWatch(tmp_path / "a.pem", tmp_path / "a.key", "127.0.0.1")
    first_us = watch.expires_us
    assert "within 30 days" in watch.trouble
    good = (tmp_path / "a.pem").read_bytes()
    (tmp_path / "a.pem").write_text("no certificate")
    watch.refresh()
    assert watch.trouble.startswith("the new certificate is invalid, and the old one stays in use: ")
    assert watch.expires_us == first_us
    (tmp_path / "a.pem").write_bytes(good)
    watch.refresh()
    assert "within 30 days" in watch.trouble
    certificate(tmp_path, "a", days=90)
    watch.refresh()
    assert watch.trouble == ""
    assert watch.expires_us > first_us
