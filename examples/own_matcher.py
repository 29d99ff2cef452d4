"""Judge answers by a function of your own.

    python examples/own_matcher.py

A command takes it by its place: cascade compare episodes.parquet --matcher function:own_matcher.same_colour
"""

from cascade.matching import get_matcher

SHADES = {"crimson": "red", "scarlet": "red", "navy": "blue", "azure": "blue"}


def same_colour(answer: str, gold: tuple[str, ...]) -> bool:
    """Return whether an answer names one of the accepted colours; a shade counts as its colour."""
    return colour(answer) in {colour(right) for right in gold}


def colour(word: str) -> str:
    """Return the colour that a word names."""
    plain = word.strip().lower()
    return SHADES.get(plain, plain)


def main() -> None:
    """Judge three answers."""
    matcher = get_matcher("function", function=same_colour)
    for answer in ("Scarlet", "blue", "navy"):
        print(answer, matcher.matches(answer, ["red"]))


if __name__ == "__main__":
    main()
