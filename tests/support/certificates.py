"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(place: Path, name: str, hosts: str = "IP:127.0.0.1,DNS:localhost", days: int = 60, *extensions: str) -> None:
    """Make a self-signed certificate for this machine (NAME.pem) and its key (NAME.key)."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days)]
    files = ["-keyout", str(place / f"{name}.key"), "-out", str(place / f"{name}.pem")]
    added = [f"subjectAltName={hosts}"] * bool(hosts) + list(extensions)
    names = ["-subj", "/CN=tutti", *(part for extension in added for part in ("-addext", extension))]
    subprocess.run([*command, *files, *names], check=True, capture_output=True)
    (place / f"{name}.key").chmod(0o600)
