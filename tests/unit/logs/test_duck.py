"""What texts mean as values, and what a connection refuses."""

from __future__ import annotations

import random
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError

pytest.importorskip("duckdb")

from cascade.logs.duck import opened, text_literal

VALUES: list[tuple[str, str, Any]] = [
    ("nano", "0.0003925", 392500),
    ("nano", "2.5e-9", 2),
    ("nano", "3.5e-9", 4),
    ("nano", "$0.0012", 1_200_000),
    ("nano", "1", 10**9),
    ("nano", "99999999.123456789", 99_999_999_123_456_789),
    ("nano", "1,234.5", 1_234_500_000_000),
    ("nano", "1,234", None),  # a decimal comma, perhaps
    ("nano", "0,001", None),
    ("nano", "-1", None),
    ("nano", "free", None),
    ("nano", "nan", None),
    ("nano", "1e400", None),
    ("nano", "9223372036.854775807", 2**63 - 1),
    ("nano", "9223372036.854775808", None),
    ("whole", "52", 52),
    ("whole", "12.0", 12),
    ("whole", "1,234", 1234),
    ("whole", "12.5", None),
    ("whole", "-1", None),
    ("whole", "true", None),
    ("whole", "9223372036854775807", 2**63 - 1),
    ("whole", "12345678901234567890123", None),
    ("number", "0.5", 0.5),
    ("number", "1,234.5", 1234.5),
    ("number", "1,234", None),
    ("number", "nan", None),
    ("number", "inf", None),
    ("number", "1e400", None),
    ("number", "0x10", None),
    ("truth", "1.0", True),
    ("truth", "Wrong", False),
    ("truth", "[true]", True),
    ("truth", "0.7", None),
    ("truth", "", None),
    ("seconds", "2026-11-21T10:00:00Z", 1795255200.0),
    ("seconds", "2026-11-21T12:00:00+02:00", 1795255200.0),
    ("seconds", "2026-11-21 10:00:00", 1795255200.0),
    ("seconds", "1795255200", 1795255200.0),
    ("seconds", "1795255200000", 1795255200.0),
    ("seconds", "1795255200000000", 1795255200.0),
    ("seconds", "1795255200000000000", 1795255200.0),
    ("seconds", "[1795255200, 500000000]", 1795255200.5),  # JavaScript's spans (L14)
    ("seconds", "yesterday", None),
    ("seconds", "12345678901234567890123", None),
    ("texts", '["a", "b"]', '["a", "b"]'),
    ("texts", "[4, 1]", '["[4, 1]"]'),
    ("texts", 'say "x"', '["say \\"x\\""]'),
]


def test_texts_become_values_or_null() -> None:
    with opened() as duck:
        for macro, text, value in VALUES:
            assert (text, duck.value(f"SELECT {macro}({text_literal(text)})")) == (text, value)


def test_amounts_are_those_of_exact_decimals() -> None:
    draw = random.Random(3)
    texts = [f"{draw.random() * 10 ** draw.randint(-12, 9):.{draw.randint(0, 14)}f}" for _ in range(500)]
    texts += [f"0.{draw.randrange(10**9):09}5" for _ in range(200)]
    exact = [int(Decimal(text).scaleb(9).to_integral_value(ROUND_HALF_EVEN)) for text in texts]
    with opened() as duck:
        listed = ", ".join(f"({at}, {text_literal(text)})" for at, text in enumerate(texts))
        found = duck.rows(f"SELECT nano(t) FROM (VALUES {listed}) AS v(k, t) ORDER BY k")
    assert [value for (value,) in found] == exact


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "ATTACH '{folder}/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
    ],
)
def test_a_connection_touches_only_its_files_and_keeps_its_settings(tmp_path: Path, sql: str) -> None:
    with opened() as duck, pytest.raises(UsageError):
        duck.run(sql.format(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_connection_prints_no_progress_and_its_folder_is_gone_at_the_end() -> None:
    with opened() as duck:
        assert duck.rows("SELECT current_setting('enable_progress_bar')") == [(False,)]
        folder = duck.folder
        assert folder.is_dir()
    assert not folder.exists()
