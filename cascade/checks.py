"""Checks of single values that a configuration holds: addresses, keys, misspelt words."""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from cascade.errors import KEY_SHAPES


def checked_base(value: str) -> str:
    """Return a server's address, or raise ValueError for one that is none or must not be asked (F74)."""
    parts = urlsplit(value)
    if parts.port == 0:  # reading it also refuses what is no port
        raise ValueError("port 0 is no address")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an address starts with http:// or https:// and names a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an address holds no user, key or query; use api_key_env for a key")
    if is_link_local(parts.hostname):
        raise ValueError("link-local and metadata addresses are refused")
    return value


# Where Alibaba Cloud and, over IPv6, AWS keep theirs: not link-local by their numbers.
_METADATA = {ipaddress.ip_address("100.100.100.200"), ipaddress.ip_address("fd00:ec2::254")}


def is_link_local(host: str) -> bool:
    """Whether a host is where clouds keep their metadata, in any spelling of the address.

    >>> is_link_local("169.254.169.254"), is_link_local("0xA9FEA9FE"), is_link_local("127.0.0.1")
    (True, True, False)
    """
    if host.lower().rstrip(".") in {"metadata", "metadata.google.internal"}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # 2852039166 and 0xA9FEA9FE are addresses too
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_link_local or address in _METADATA


_SECRET_NAMES = re.compile(r"(?i)^(?:api_?key|key|token|secret|password|authorization)$")


def is_secret_name(name: object) -> bool:
    """Whether a setting of this name would hold a key."""
    return isinstance(name, str) and _SECRET_NAMES.match(name) is not None


def secret_problems(value: object, path: str = "") -> Iterable[str]:
    """Yield where a key stands in a configuration (F67), without the key."""
    advice = "keys do not belong in a configuration; put it in an environment variable and name that: api_key_env: NAME"
    if isinstance(value, Mapping):
        for name, item in value.items():
            here = f"{path}.{name}" if path else str(name)
            if is_secret_name(name):
                yield f"{here}: {advice}"
            else:
                yield from secret_problems(item, here)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from secret_problems(item, f"{path}[{index}]")
    elif isinstance(value, str) and KEY_SHAPES.search(value):
        yield f"{path}: this looks like a key; {advice}"


_LIST_AT_MOST = 12


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest known word, and all of them if there are few.

    >>> did_you_mean("treshold", ("fixed", "threshold"))
    '; did you mean threshold? Known: fixed, threshold'
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if len(names) > _LIST_AT_MOST:
        return hint
    return f"{hint} Known: {', '.join(names)}" if hint else f"; known: {', '.join(names)}"
