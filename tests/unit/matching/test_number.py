"""Numbers: what is the same value, what is not, and what cannot be said."""

from __future__ import annotations

from fractions import Fraction

from cases import each

from cascade.matching import get_matcher
from cascade.matching.number import NumberMatcher, read_numbers, read_run

F, LONG = Fraction, "0." + "0" * 300 + "1"

SAME = [
    ("42", "42"),
    ("42.0", "42"),
    ("042", "42"),
    ("+42", "42"),
    ("**42**", "42"),
    ("~42", "42"),
    ("about 42.", "42"),
    # thousands and decimals
    ("1,000", "1000"),
    ("1 000", "1000"),
    ("1\u00a0000\u202f000", "1000000"),
    ("1'000", "1000"),
    ("1_000", "1000"),
    ("12,34,567", "1234567"),
    ("1.234.567", "1234567"),
    ("1,000.5", "1000.5"),
    ("1.000,5", "1000.5"),
    ("1 000,5", "1000.5"),
    ("3,14", "3.14"),
    (".5", "0.5"),
    ("٣٫٥", "3.5"),
    ("１２", "12"),
    # fractions, percent, powers
    ("3/4", "0.75"),
    ("3 / 4", "0.75"),
    ("0.75", "3/4"),
    ("1 1/2", "1.5"),
    ("2½", "2.5"),
    ("\\frac{3}{4}", "0.75"),
    ("-\\frac{3}{4}", "-0.75"),
    ("50%", "0.5"),
    ("0.5", "50 percent"),
    ("42%", "42"),
    ("42", "42%"),
    ("1e3", "1000"),
    ("1.5E-3", "0.0015"),
    ("1.5 x 10^3", "1500"),
    ("1.5×10³", "1500"),
    ("1.5 \\times 10^{3}", "1500"),
    ("10^6", "1000000"),
    ("10⁻²", "0.01"),
    # signs
    ("−5", "-5"),
    ("minus 5", "-5"),
    ("negative five", "-5"),
    ("(5)", "-5"),
    ("$(1,234.50)", "-$1234.5"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    # words
    ("seven", "7"),
    ("Seven apples", "7"),
    ("twenty-one", "21"),
    ("two hundred and five", "205"),
    ("a dozen", "12"),
    ("three thousand two hundred", "3200"),
    ("one half", "0.5"),
    ("two thirds", "2/3"),
    ("three-quarters", "0.75"),
    ("two and a half", "2.5"),
    ("5 million", "5,000,000"),
    ("2.5 billion", "2500000000"),
    ("3k", "3000"),
    ("5th", "5"),
    # units
    ("9 eggs", "9"),
    ("9", "9 eggs"),
    ("5 km", "5 m"),
    ("1,500 km²", "1500"),
    ("5 kilometres per hour", "5 mph"),
    ("100 °F", "100 °C"),
    ("$9", "9"),
    ("C$9", "€9"),
    ("9 USD", "$9"),
    ("USD 9", "$9"),
    ("$5m", "5 million dollars"),
    ("$5 per hour", "$5"),
    ("5 percent", "5%"),
    # what is stated counts
    ("x = 5", "5"),
    ("3 + 4 = 7", "7"),
    ("3 + 4 = 7, so x = 7", "7"),
    ("5 = x", "5"),
    ("\\boxed{12}", "12"),
    ("$12$", "12"),
    ("There are 3 boxes of 4. The answer is 12.", "12"),
    ("Answer: 1,234 km.", "1234 km"),
    ("#### 12", "12"),
    ("5 or five", "5"),
    ("about 5", "5"),
    ("- 5", "5"),  # an item of a list
]
DIFFERENT = [
    ("", "5"),
    ("none", "5"),
    ("3 or 4", "3"),
    ("3 or four", "3"),
    ("9 of 10", "9"),
    ("7 x 3", "21"),
    ("5-6", "5"),
    ("5 ± 1", "5"),
    ("1,2,3", "123"),
    ("5", "-5"),
    ("35", "3.5"),
    ("1,000", "1"),
    ("1.000", "1000"),
    ("0.5%", "0.5"),
    ("50%", "50.5"),
    ("5 km (3.1 mi)", "5 km"),
    ("5 ft 3 in", "5"),
    ("1.5 km", "1500 m"),
    ("5km", "5"),
    ("> 5", "5"),
    ("at least 5", "5"),
    ("less than five", "5"),
    ("more than 5", "5"),
    # formulas, which `math` reads
    ("q - 3", "3"),
    ("2 + x", "2"),
    ("-7 - 3c + 3d", "-7"),
    ("(q-1)(q+4)/3", "3"),
    ("18\\sqrt{5}", "18"),
    ("30π/4", "30"),
    ("6sin^2 y", "6"),
    ("2(x+1)", "2"),
    ("2/x", "2"),
    ("[-3, -7]", "-3"),
    ("1.001", "1"),
    ("1/0", "1"),
    ("1/3", "0.3333"),
    ("no one", "1"),
    ("one or two", "2"),
    ("half a million", "0.5"),
    ("2 hundred thousand million", "200000"),
    ("twenty-third", "20"),
    ("two three", "5"),
    ("x = 5, y = 6", "6"),
    ("5 million", "5"),
    # no numbers, though there are digits
    ("B12", "12"),
    ("COVID-19", "19"),
    ("2x", "2"),
    ("10:30", "10"),
    ("5 pm", "5"),
    ("1.2.3", "1.2"),
    ("5/5/1992", "1"),
    ("2^10", "2"),
    ("2^10", "1024"),
    # too large to be read
    ("9" * 5_000, "9"),
    ("1e999999", "5"),
    ("1e-999999", "0"),
    ("10^999999999999", "5"),
    ("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22", "1"),
]


@each(
    "answer, gold, right",
    [
        *((answer, [gold], True) for answer, gold in SAME),
        *((answer, [gold], False) for answer, gold in DIFFERENT),
        # an accepted answer without one number leaves the truth unknown
        *(("5", gold, None) for gold in ([], [""], ["Danube"], ["3 or 4"], ["10:30"], ["1e999999"], ["B12"], ["< 5"])),
        # the same text is right whatever it is
        *((f" {text}\n", [text], True) for text in ("3 or 4", "10:30", "1e999999", "Danube", "B12")),
        ("5", ["Danube", "4", "five"], True),
        ("5", ["Danube", "4"], False),
        (LONG, ["0"], False),
        (LONG, ["1e-301"], True),
    ],
)
def test_an_answer_is_right_wrong_or_cannot_be_judged(answer: str, gold: list[str], right: bool | None) -> None:
    assert NumberMatcher().matches(answer, gold) is right


@each(
    "options, answer, gold, right",
    [
        ("rel=0.01", "3.14", "3.14159", True),
        ("rel=1e-4", "3.14", "3.14159", False),
        ("rel=1%", "99", "100", True),
        ("rel=1%", "98.9", "100", False),
        ("abs=0.5", "4.5", "5", True),
        ("abs=0.5", "4.49", "5", False),
        ("rel=1%,abs=2", "98", "100", True),
    ],
)
def test_a_tolerance_is_relative_or_absolute(options: str, answer: str, gold: str, right: bool) -> None:
    assert get_matcher(f"number:{options}").matches(answer, [gold]) is right


def test_values_are_exact() -> None:
    assert [number.value for number in read_numbers("1/3") if number is not None] == [F(1, 3)]


@each(
    "run, value",
    [
        ("1,000", F(1000)),
        ("1.000", F(1)),
        ("0,123", F(123, 1000)),
        ("1234,567", F(1234567, 1000)),
        ("1.234,567", F(1234567, 1000)),
        ("1,234.567", F(1234567, 1000)),
        ("1,00,000", F(100000)),
        ("1,000,00", None),
        ("1,0000.5", None),
        ("1.2,3.4", None),
        ("1'000.5", F(2001, 2)),
        ("9" * 1_001, None),
    ],
)
def test_separators_are_read_where_only_one_reading_is_clear(run: str, value: Fraction | None) -> None:
    assert read_run(run) == value
