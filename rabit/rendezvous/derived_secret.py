"""A secret of a job from a file that all its hosts have and nobody else: a mounted Secret, the key of an ssh.

Source: HMAC-based Extract-and-Expand Key Derivation Function (Krawczyk and Eronen, RFC 5869, 2010).
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from rabit.errors import InvalidArgument

__all__ = ["derived_secret", "hkdf"]

_LEAST_BYTES = 16
_MOST_BYTES = 1 << 20


def derived_secret(path: str, job: str) -> bytes:
    """32 bytes from the file at `path` and the name of the job, which keeps jobs that share the file apart.

    Raises InvalidArgument for a file that cannot be read, or is too short to hold a key.
    """
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"the key file {path} (RABIT_SECRET_KEY_FILE) cannot be read: {error.strerror}. Mount it on every host."
        ) from error
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise InvalidArgument(
            f"the key file {path} (RABIT_SECRET_KEY_FILE) has {len(key)} bytes: expected {_LEAST_BYTES} to "
            f"{_MOST_BYTES} that cannot be guessed, such as 'openssl rand -hex 32'."
        )
    return hkdf(key, f"rabit job {job}".encode())


def hkdf(key: bytes, info: bytes, count: int = 32, salt: bytes = b"") -> bytes:
    """`count` bytes, at most 8,160, by HKDF with SHA-256."""
    extracted = hmac.digest(salt or bytes(32), key, hashlib.sha256)
    block, found = b"", b""
    for number in range(1, -(-count // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), hashlib.sha256)
        found += block
    return found[:count]
