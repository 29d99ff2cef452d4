"""The methods that `fit` can be asked for, and how their names are written."""

from __future__ import annotations

from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.policies import learned
from cascade.training.choice.portfolio import AUTO

METHODS = (AUTO, *learned.METHODS)


def method_written(method: str) -> str:
    """Return a method as messages write it: networks with dashes.

    >>> method_written("cpo_batch"), method_written("net_benefit")
    ('cpo-batch', 'net_benefit')
    """
    return method.replace("cpo_", "cpo-")


def method_named(said: str | None) -> str | None:
    """Return a method as it is called inside; what was not given stays so.

    >>> method_named("cpo-batch"), method_named("net_benefit"), method_named(None)
    ('cpo_batch', 'net_benefit', None)
    """
    return None if said is None else said.replace("-", "_")


def check_method(method: str) -> None:
    """Refuse a method that does not exist."""
    if method not in METHODS:
        meant = did_you_mean(method_written(method), map(method_written, METHODS))
        raise UsageError(f"There is no policy {method_written(method)!r} to fit{meant}.")
