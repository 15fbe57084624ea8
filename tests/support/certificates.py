"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(place: Path, name: str) -> None:
    """Make a self-signed certificate for this machine (NAME.pem) and its key (NAME.key)."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(place / f"{name}.key"), "-out", str(place / f"{name}.pem")]
    names = ["-subj", "/CN=tutti", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command, *files, *names], check=True, capture_output=True)
    (place / f"{name}.key").chmod(0o600)
