"""Checks of single values: addresses, keys, misspelt words and shares in a configuration, and seconds."""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from types import UnionType
from urllib.parse import urlsplit

from cascade.errors import UsageError
from cascade.money import nano_usd
from cascade.safety import holds_key

MAX_QUESTION_CHARS = 1_000_000
_LONGEST_NAME_CHARS = 40


def shown_name(value: object) -> str:
    """Return an unknown name as an error shows it: a long one is hidden, since it may be a pasted key.

    >>> shown_name("treshold"), shown_name("0123456789abcdef" * 4)
    ("'treshold'", 'such a name (64 characters, not shown)')
    """
    text = str(value)
    if len(text) > _LONGEST_NAME_CHARS or (len(text) > _SHORTEST_RANDOM_CHARS and _RANDOM.fullmatch(text)):
        return f"such a name ({len(text)} characters, not shown)"
    return repr(value)


_SHORTEST_RANDOM_CHARS = 15
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]+")


def checked_key(key: str, name: str) -> str:
    """Return a key without surrounding blanks and line ends, which a file or a shell may have added.

    Raises:
        ValueError: the key has a character that is not allowed in an HTTP header; the message has its `name`, not the
            key.
    """
    bare = key.strip()
    if not all("!" <= char <= "~" for char in bare):
        raise ValueError(
            f"{name} holds a character that no key has (a blank, a control or one beyond ASCII); copy the key again"
        )
    return bare


_CALLED = "/chat/completions"


def checked_base(value: str) -> str:
    """Return a server's address; raise ValueError if it is not valid or is forbidden (F74)."""
    parts = urlsplit(value)
    if parts.port == 0:  # reading `port` also refuses invalid ports
        raise ValueError("port 0 is not a valid port")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an address starts with http:// or https:// and names a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an address must not hold a user, key or query; use api_key_env for a key")
    base = value.rstrip("/").removesuffix(_CALLED)
    if base != value.rstrip("/"):
        raise ValueError(f"cascade adds {_CALLED} itself; write {base}")
    if is_link_local(parts.hostname):
        raise ValueError("link-local and metadata addresses are refused")
    return value


# The metadata addresses of Alibaba Cloud and, over IPv6, of AWS, which are not link-local.
_METADATA = {ipaddress.ip_address("100.100.100.200"), ipaddress.ip_address("fd00:ec2::254")}


def is_link_local(host: str) -> bool:
    """Return whether a host is a link-local or cloud metadata address, in any spelling.

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
    """Return whether a setting of this name is for a key."""
    return isinstance(name, str) and _SECRET_NAMES.match(name) is not None


def secret_problems(value: object, path: str = "") -> Iterable[str]:
    """Yield the places of keys in a configuration (F67), without the keys."""
    advice = "keys do not belong in a configuration; put it in an environment variable and name that: api_key_env: NAME"
    if isinstance(value, Mapping):
        for name, inner in value.items():
            here = f"{path}.{name}" if path else str(name)
            if is_secret_name(name):
                yield f"{here}: {advice}"
            else:
                yield from secret_problems(inner, here)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from secret_problems(inner, f"{path}[{index}]")
    elif isinstance(value, str) and holds_key(value):
        yield f"{path}: this looks like a key; {advice}"


def share_problems(*, ends: bool = False, **shares: object) -> list[str]:
    """Return the problems of shares and probabilities; None means not given.

    Args:
        ends: whether 0 and 1 are allowed.
        shares: the values, by their names in messages.

    >>> share_problems(alpha=1.0, delta=None, level=0.05), share_problems(alpha="1", ends=True)
    (['alpha must lie between 0 and 1, not 1.0'], ["alpha must lie in 0..1, not '1'"])
    """
    bounds = "in 0..1" if ends else "between 0 and 1"
    return [
        f"{name} must lie {bounds}, not {share!r}"
        for name, share in shares.items()
        if share is not None
        and not (isinstance(share, Real) and (0 < float(share) < 1 or (ends and share in {0, 1})))  # NaN is neither
    ]


def kind_problems(kind: type | UnionType, form: str, **values: object) -> list[str]:
    """Return the problems of values that do not have the required class, by their names in messages.

    >>> kind_problems(Integral, "a whole number", seed=1.5, splits=20)
    ['seed must be a whole number, not 1.5']
    """
    return [f"{name} must be {form}, not {value!r}" for name, value in values.items() if not isinstance(value, kind)]


def whole_problems(**numbers: object) -> list[str]:
    """Return the problems of numbers that must be whole."""
    return kind_problems(Integral, "a whole number", **numbers)


def max_cost_nano_usd(amount_usd: float | None) -> int | None:
    """Return the amount of --max-cost in nano-USD. Raises UsageError if it is not above 0."""
    if amount_usd is None:
        return None
    if not 0 < amount_usd < 1e9:
        raise UsageError(f"--max-cost is an amount in USD above 0, not {amount_usd}.")
    return nano_usd(amount_usd)


_LIST_AT_MOST = 16


def refuse(problems: Iterable[str], about: str = "") -> None:
    """Raise one UsageError that lists all problems, after what they are about; return if there are none.

    >>> refuse(share_problems(alpha=0.1))
    """
    listed = list(problems)
    if listed:
        raise UsageError(f"{about and f'{about}: '}{'; '.join(listed)}.")


def hint_at(word: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known word, or "" if none is near.

    >>> hint_at("Treshold", ("fixed", "threshold")), hint_at("x", ("fixed", "threshold"))
    ('; did you mean threshold?', '')
    """
    names = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names. Raises ValueError if one occurs more than once."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} is named more than once")
    return names


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known word, and with all known words if there are few, or if none is near.

    >>> did_you_mean("treshold", ("fixed", "threshold"))
    '; did you mean threshold? Known: fixed, threshold'
    """
    names = sorted(set(known))
    hint, mark = hint_at(word, names), "; " if any("," in name for name in names) else ", "
    if len(names) > (_LIST_AT_MOST if hint else 3 * _LIST_AT_MOST):
        return hint
    return f"{hint} Known: {mark.join(names)}" if hint else f"; known: {mark.join(names)}"


def unknown(sort: str, name: object, known: Iterable[str]) -> str:
    """Return the problem of an unknown name, with the name that was probably meant.

    >>> unknown("kind", "treshold", ("fixed", "threshold"))
    "there is no kind 'treshold'; did you mean threshold? Known: fixed, threshold"
    """
    return f"there is no {sort} {shown_name(name)}{did_you_mean(str(name), known)}"


def above_zero(deadline_s: object) -> float | None:
    """Return a number of seconds, or None; raise UsageError for anything else and for a number that is not above 0."""
    if deadline_s is None or (isinstance(deadline_s, int | float) and deadline_s > 0):
        return deadline_s
    raise UsageError(f"deadline_s must be a number of seconds above 0, not {deadline_s!r}.")
