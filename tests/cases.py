"""Tables of cases in one test: every case is tried, and all that fail are listed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Try a test on every case of a table, as `pytest.mark.parametrize` does, within one test.

    For tests of plain values: pytest takes more time to make a test of a case than the case takes. They must ask for
    no fixture that belongs to one case, such as `tmp_path`.
    """
    arguments, table = [name.strip() for name in names.split(",")], list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def every_case(**others: Any) -> None:
            failed = []
            for case in table:
                given = dict(zip(arguments, (case,) if len(arguments) == 1 else case, strict=True))
                try:
                    test(**others, **given)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{given}: {type(error).__name__}: {error}")
            assert not failed, "\n".join([f"{len(failed)} of {len(table)} cases fail:", *failed])

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        every_case.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return every_case

    return decorate
