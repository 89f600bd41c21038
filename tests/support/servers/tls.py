"""A certificate for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine that nobody has signed, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {cert}"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    return cert, key
