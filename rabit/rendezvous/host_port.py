"""Addresses as text: host and port."""

from __future__ import annotations

from rabit.errors import InvalidArgument

__all__ = ["format_address", "split_address"]


def split_address(text: str, source: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port".  `source` names the setting in errors."""
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    is_well_formed = separator and host and port.isascii() and port.isdigit()
    if not is_well_formed or int(port) > 65535 or (":" in host and not is_bracketed):
        raise InvalidArgument(
            f"{source} is {text!r}, which is not an address: expected host:port or [v6]:port, "
            "such as 10.0.0.1:29400. Correct it."
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text "host:port"; an IPv6 host gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
