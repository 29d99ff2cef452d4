"""Dates: one day in many forms, partial dates, eras, and dates that can be read in two ways."""

from __future__ import annotations

import itertools

from cascade.matching.date import DateMatcher

ONE_DAY = [
    "1992-05-05",
    "1992/05/05",
    "1992-05-05T12:00:00Z",
    "19920505",
    "5 May 1992",
    "5 May, 1992",
    "5th May 1992",
    "5-May-1992",
    "the 5th of May, 1992",
    "the 5th day of May 1992",
    "May 5, 1992",
    "May 5th 1992",
    "MAY 5 1992",
    "Tuesday, May 5, 1992",
    "on 5 May 1992 at 10:30",
    "5 May 1992 AD",
    "5.5.1992",
    "5/5/1992",
    "05/05/1992",
    "**5 May 1992**",
    "Answer: 5 May 1992",
]
SAME = [
    ("5 May 1992", "1992"),
    ("5 May 1992", "May 1992"),
    ("5 May 1992", "5 May"),
    ("1992-05", "May 1992"),
    ("5/1992", "May 1992"),
    ("in 1992", "1992"),
    ("c. 1992", "1992"),
    ("1992", "AD 1992"),
    ("1992年", "1992"),
    ("1992-05-05", "１９９２-05-05"),
    ("5 May '92", "5 May 1992"),
    ("05.06.92", "5 June 1992"),
    ("05.06.1992", "5 June 1992"),
    ("Sept. 5, 1992", "5 September 1992"),
    ("4th of July", "July 4"),
    ("29 February 2000", "2000-02-29"),
    ("29 February 1900", "1900-02-29"),  # there was one where the Julian calendar held
    ("5 May 1992 (5/5/1992)", "5 May 1992"),
    ("5 May 1992 or 6 June 1992", "1992"),
    # readings
    ("3/4/1992", "3 April 1992"),
    ("3/4/1992", "March 4, 1992"),
    ("13/5/1992", "May 13, 1992"),
    ("5/13/1992", "13 May 1992"),
    # eras
    ("44 BC", "44 BCE"),
    ("44 B.C.", "44 BC"),
    ("44 B. C. E.", "44 BC"),
    ("March 44 BC", "44 BC"),
    ("15 March 44 BC", "March 44 BCE"),
    ("-0043", "44 BC"),
    ("-0043-03-15", "15 March 44 BC"),
    ("0000", "1 BC"),
    ("AD 79", "79 AD"),
    ("79 CE", "A.D. 79"),
]
DIFFERENT = [
    ("", "1992"),
    ("soon", "1992"),
    ("1992", "5 May 1992"),
    ("May 1992", "5 May 1992"),
    ("5 May", "5 May 1992"),
    ("6 May 1992", "5 May 1992"),
    ("5 May 1993", "5 May 1992"),
    ("5 May 1992 or 6 May 1992", "5 May 1992"),
    ("1992 or 1993", "1992"),
    ("1914-1918", "1914"),
    ("1992-93", "1992"),
    ("1990s", "1990"),
    ("19th century", "1900"),
    ("1,992", "1992"),
    ("12,1992", "1992"),
    ("1992.5", "1992"),
    ("44", "44 BC"),
    ("44 AD", "44 BC"),
    ("0 BC", "1 BC"),
    ("31 February 1992", "February 1992"),
    ("30/02/1992", "1992-02-28"),
    ("29 February 1991", "February 1991"),
    ("1992-13-01", "1992"),
    ("05.06.1992", "6 May 1992"),
    ("3/4/1992", "5 April 1992"),
    ("10:30", "1030"),
    ("room 1992b", "1992"),
    (", ".join(str(year) for year in range(1900, 1930)), "1900"),
]


def test_one_day_in_any_two_forms() -> None:
    wrong = [
        (answer, gold)
        for answer, gold in list(itertools.product(ONE_DAY, ONE_DAY))
        if DateMatcher().matches(answer, [gold]).correct is not True
    ]
    assert wrong == []


def test_the_same_date_as_far_as_the_accepted_one_goes() -> None:
    wrong = [(answer, gold) for answer, gold in SAME if DateMatcher().matches(answer, [gold]).correct is not True]
    assert wrong == []


def test_another_date_a_vaguer_one_or_none() -> None:
    wrong = [(answer, gold) for answer, gold in DIFFERENT if DateMatcher().matches(answer, [gold]).correct is not False]
    assert wrong == []


def test_an_accepted_date_with_two_readings_leaves_the_truth_unknown() -> None:
    wrong = [
        (answer, gold, correct)
        for answer, gold, correct in [
            ("3 April 1992", "3/4/1992", None),
            ("4 March 1992", "3/4/1992", None),
            ("1993", "3/4/1992", False),
            ("5 April 1992", "3/4/1992", False),
            ("3/4/1992", "3/4/1992", True),  # the same text
            ("3/4/92", "3/4/1992", None),
            ("5 May 1992", "5 May '92", None),
            ("5 May 1892", "5 May '92", False),
            ("1992", "the 1990s", None),
            ("1992", "", None),
            ("1992", "1914-1918", None),
            ("1914–1918", "1914-1918", True),
            ("1992", "31 February 1992", None),
        ]
        if DateMatcher().matches(answer, [gold]).correct is not correct
    ]
    assert wrong == []


def test_any_accepted_answer_will_do() -> None:
    assert DateMatcher().matches("3 April 1992", ["3/4/1992", "1992-04-03"]).correct is True
    assert DateMatcher().matches("3 April 1992", ["3/4/1992", "1991"]).correct is None
    assert DateMatcher().matches("1992", []).correct is None


def test_the_language_of_the_machine_is_of_no_matter() -> None:
    import locale

    before = locale.setlocale(locale.LC_TIME)
    try:
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_TIME, name)
            except locale.Error:
                continue
            assert DateMatcher().matches("5 May 1992", ["1992-05-05"]).correct is True
            assert DateMatcher().matches("5 Mai 1992", ["1992-05-05"]).correct is False
    finally:
        locale.setlocale(locale.LC_TIME, before)
