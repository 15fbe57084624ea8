"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(
    place: Path, name: str, hosts: str = "IP:127.0.0.1,DNS:localhost", days: int = 60, *extensions: str, authority: str = ""
) -> None:
    """Make a certificate for this machine (NAME.pem) and its key (NAME.key); with negative `days`, it has expired.

    The certificate is self-signed unless `authority` names another one in the same place.
    """
    place.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(place / f"{name}.key"), "-out", str(place / f"{name}.pem")]
    signer = ["-CA", str(place / f"{authority}.pem"), "-CAkey", str(place / f"{authority}.key")] if authority else []
    added = [f"subjectAltName={hosts}"] * bool(hosts) + list(extensions)
    names = ["-subj", "/CN=tutti", *(part for extension in added for part in ("-addext", extension))]
    subprocess.run([*command, *signer, "-days", str(max(1, days)), *files, *names], check=True, capture_output=True)
    if days < 0:  # `openssl req` makes no expired certificate, so it is signed again
        again = ["openssl", "x509", "-in", f"{name}.pem", "-signkey", f"{name}.key", "-days", str(days), "-out", f"{name}.pem"]
        subprocess.run(again, check=True, capture_output=True, cwd=place)
    (place / f"{name}.key").chmod(0o600)
