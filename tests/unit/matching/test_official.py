"""SQuAD's and HotpotQA's rules: a table of hard cases worked out by hand, and an oracle written from the rules' text."""

from __future__ import annotations

import string
from fractions import Fraction

import pytest
from cases import each

from cascade.matching.base import Verdict
from cascade.matching.official import HotpotQAMatcher, SquadMatcher, official_normalize

F = Fraction

# answer, accepted answers, exact match, F1 of SQuAD, F1 of HotpotQA where it is another.
# The F1 of a answer tokens and g accepted ones with s in common (each as often as in both) is 2s / (a + g).
CASES: list[tuple[str, list[str], bool, F, F | None]] = [
    # case, articles, punctuation, space
    ("Danube", ["Danube"], True, F(1), None),
    ("the Danube", ["Danube"], True, F(1), None),
    ("The Danube.", ["danube"], True, F(1), None),
    ("blue Danube", ["the Blue Danube"], True, F(1), None),
    ("Danube River", ["Danube"], False, F(2, 3), None),
    ("  Danube \n River\t", ["Danube River"], True, F(1), None),
    ('"Danube"', ["Danube"], True, F(1), None),
    ("an apple", ["apple"], True, F(1), None),
    ("x a y", ["x y"], True, F(1), None),
    ("A Tale of Two Cities", ["Tale of Two Cities"], True, F(1), None),
    # nothing is left: the same, yet without a token in common
    ("", [""], True, F(0), None),
    ("", ["Danube"], False, F(0), None),
    ("Danube", [""], False, F(0), None),
    ("the", [""], True, F(0), None),
    ("a", ["the"], True, F(0), None),
    ("the the the", ["the"], True, F(0), None),
    ("!!!", ["?"], True, F(0), None),
    ("...", ["Danube"], False, F(0), None),
    ("an, the", [""], True, F(0), None),
    # articles inside words stay; those that losing a point makes do not
    ("theatre", ["atre"], False, F(0), None),
    ("Anthem", ["them"], False, F(0), None),
    ("thean", ["an"], False, F(0), None),
    ("an-the", [""], False, F(0), None),  # "anthe"
    ("a.m.", ["am"], True, F(1), None),
    ("A.N.", ["N"], False, F(0), None),  # "an" is an article
    ("U.S.A.", ["USA"], True, F(1), None),
    ("U.S. A.", ["USA"], False, F(0), None),  # "us a"
    ("vitamin A", ["vitamin"], True, F(1), None),
    ("Plan A", ["Plan B"], False, F(2, 3), None),  # "plan" and "plan b"
    ("d'a", ["d"], False, F(0), None),  # "da"
    ("a b", ["b"], True, F(1), None),
    ("a-b", ["ab"], True, F(1), None),
    # numbers are words like others
    ("1,000", ["1000"], True, F(1), None),
    ("1.000", ["1000"], True, F(1), None),
    ("1 000", ["1000"], False, F(0), None),
    ("3.5", ["35"], True, F(1), None),
    ("-5", ["5"], True, F(1), None),
    ("$9", ["9"], True, F(1), None),
    ("50%", ["50"], True, F(1), None),
    ("1/2", ["12"], True, F(1), None),
    ("seven", ["7"], False, F(0), None),
    ("²", ["2"], False, F(0), None),
    # hyphens, apostrophes, signs
    ("well-known", ["wellknown"], True, F(1), None),
    ("well-known", ["well known"], False, F(0), None),
    ("Jean-Luc Picard", ["Jean Luc Picard"], False, F(2, 5), None),  # 2 tokens, 3, 1 in common
    ("1914-1918", ["19141918"], True, F(1), None),
    ("foo_bar", ["foobar"], True, F(1), None),
    ("C++", ["C"], True, F(1), None),
    ("O'Brien", ["OBrien"], True, F(1), None),
    # only ASCII punctuation goes
    ("1914\u20131918", ["19141918"], False, F(0), None),
    ("\u201cDanube\u201d", ["Danube"], False, F(0), None),
    ("\u201cthe\u201d Danube", ["Danube"], False, F(1, 2), None),  # the quotes stay, as two tokens
    ("O\u2019Brien", ["OBrien"], False, F(0), None),
    # Unicode: lower case, no folding
    ("CAFÉ", ["café"], True, F(1), None),
    ("cafe\u0301", ["caf\u00e9"], False, F(0), None),
    ("a\u0301", ["\u0301"], True, F(1), None),  # a combining mark ends the word, so the a is an article
    ("Ｄanube", ["Danube"], False, F(0), None),
    ("Straße", ["strasse"], False, F(0), None),
    ("\u0130stanbul", ["istanbul"], False, F(0), None),  # İ becomes i with a dot above
    ("ΟΔΟΣ", ["\u03bf\u03b4\u03bf\u03c2"], True, F(1), None),  # a final sigma
    ("ΟΔΟΣ", ["\u03bf\u03b4\u03bf\u03c3"], False, F(0), None),
    ("Danube\u200b", ["Danube"], False, F(0), None),
    ("\u202eDanube", ["Danube"], False, F(0), None),
    ("\x00Danube", ["Danube"], False, F(0), None),
    # what is space to Python is space
    ("Danube\u00a0River", ["Danube River"], True, F(1), None),
    ("to\u2028be", ["to be"], True, F(1), None),
    ("\x1fDanube", ["Danube"], True, F(1), None),
    # tokens count as often as they stand in both, in any order
    ("to be or not to be", ["to be"], False, F(1, 2), None),
    ("buffalo buffalo", ["buffalo buffalo buffalo"], False, F(4, 5), None),
    ("Rhine Danube", ["Danube Rhine"], False, F(1), None),
    # the best of several accepted answers
    ("New York", ["New York City", "York"], False, F(4, 5), None),
    ("Paris", ["London", "Paris", "Rome"], True, F(1), None),
    ("Paris France", ["Paris", "France"], False, F(2, 3), None),
    # yes, no and noanswer
    ("yes", ["yes"], True, F(1), None),
    ("Yes.", ["yes"], True, F(1), None),
    ("the yes", ["yes"], True, F(1), None),
    ("noanswer", ["noanswer"], True, F(1), None),
    ("yes", ["no"], False, F(0), None),
    ("no answer", ["noanswer"], False, F(0), None),
    ("yes it is", ["yes"], False, F(1, 2), F(0)),
    ("yes", ["yes it is"], False, F(1, 2), F(0)),
    ("no", ["no one"], False, F(2, 3), F(0)),
    ("yes and no", ["no"], False, F(1, 2), F(0)),
    ("noanswer given", ["noanswer"], False, F(2, 3), F(0)),
    ("yes", ["yes it is", "yes"], True, F(1), None),
    ("yes it is", ["yes", "yes it was"], False, F(2, 3), F(2, 3)),  # the second is no closed answer
]


def test_the_table_is_large() -> None:
    assert len(CASES) >= 60


@each("answer, gold, exact, f1, hotpot", CASES)
def test_a_hard_case_is_what_was_worked_out_by_hand(
    answer: str, gold: list[str], exact: bool, f1: F, hotpot: F | None
) -> None:
    squad = SquadMatcher().matches(answer, gold)
    assert (squad.correct, squad.score) == (exact, pytest.approx(float(f1), abs=1e-12))
    other = HotpotQAMatcher().matches(answer, gold)
    assert (other.correct, other.score) == (exact, pytest.approx(float(f1 if hotpot is None else hotpot), abs=1e-12))


def runs_of_word_characters(text: str) -> list[str]:
    """Cut a text into runs of letters and digits, and what lies between them."""
    runs: list[str] = []
    inside = None
    for char in text:
        if char.isalnum() == inside:
            runs[-1] += char
        else:
            runs.append(char)
        inside = char.isalnum()
    return runs


def oracle_normalize(text: str) -> list[str]:
    """The rule in four sentences: lower case; no ASCII punctuation; no word that is an article; split at space."""
    lowered = [char for char in text.lower() if char not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    kept = [" " if run in ("a", "an", "the") else run for run in runs_of_word_characters("".join(lowered))]
    return "".join(kept).split()


def oracle_f1(answer: str, gold: str, *, closed: bool) -> float:
    """2·P·R / (P + R) of the tokens, each taken once from the accepted answer; none for a closed answer that differs."""
    said, left = oracle_normalize(answer), oracle_normalize(gold)
    if closed and said != left and (said in (["yes"], ["no"], ["noanswer"]) or left in (["yes"], ["no"], ["noanswer"])):
        return 0.0
    wanted, same = len(left), 0
    for token in said:
        if token in left:
            left.remove(token)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(said), same / wanted
    return 2 * precision * recall / (precision + recall)


def test_the_oracles_punctuation_is_pythons() -> None:
    assert set(string.punctuation) == set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@each("answer", [case[0] for case in CASES])
def test_every_pair_of_the_table_is_what_the_oracle_says_to_the_last_bit(answer: str) -> None:
    assert official_normalize(answer).split() == oracle_normalize(answer)
    for gold in {one for case in CASES for one in case[1]}:
        exact = oracle_normalize(answer) == oracle_normalize(gold)
        assert SquadMatcher().matches(answer, [gold]) == Verdict(exact, oracle_f1(answer, gold, closed=False))
        assert HotpotQAMatcher().matches(answer, [gold]) == Verdict(exact, oracle_f1(answer, gold, closed=True))


def test_a_threshold_on_f1_is_met_exactly() -> None:
    answer, gold = "buffalo buffalo", ["buffalo buffalo buffalo"]
    assert SquadMatcher(F("0.8")).matches(answer, gold).correct is True
    assert SquadMatcher(F("0.8001")).matches(answer, gold).correct is False
    assert SquadMatcher(F("0.0001")).matches("", [""]).correct is False


def test_a_threshold_does_not_help_a_closed_answer() -> None:
    assert SquadMatcher(F(1, 2)).matches("yes it is", ["yes"]).correct is True
    assert HotpotQAMatcher(F(1, 2)).matches("yes it is", ["yes"]).correct is False
    assert HotpotQAMatcher(F(1, 2)).matches("yes", ["yes"]).correct is True


def test_without_an_accepted_answer_the_truth_is_unknown() -> None:
    wrong = [
        matcher for matcher in [SquadMatcher(), HotpotQAMatcher()] if matcher.matches("Danube", []) != Verdict(None)
    ]
    assert wrong == []


def test_one_text_is_one_accepted_answer() -> None:
    assert SquadMatcher().matches("e", "Danube").correct is False
    assert SquadMatcher().matches("Danube", "Danube").correct is True
