"""Units of measure and money: their names, and their exact factors to the base unit.

Factors are definitions, not measurements: the SI brochure (9th edition, 2019) and the international yard and pound
(1959). US measures of volume. A kilobyte has 1,000 bytes, a kibibyte 1,024.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit: a value v in it is v · factor + offset of the base unit of its dimension."""

    name: str
    dimension: str
    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)


PERCENT = Unit("%", "share", Fraction(1, 100))
DEGREE = Unit("°", "angle")
TEMPERATURE = "temperature"
MONEY = "money "
"""The start of a currency's dimension: each currency is a separate dimension, since exchange rates are not units."""

# dimension: (factor to the base unit, symbols, names); "~" marks the units that take SI prefixes, and which.
_ALL, _THOUSANDS, _UP = "TGMkcdmμnp", "TGMkmμnp", "TGMk"
_TABLE: tuple[tuple[str, str, str, str, str], ...] = (
    ("length", "1", "m", "metre meter", _ALL),
    ("length", "0.0254", "in", "inch inches", ""),
    ("length", "0.3048", "ft", "foot feet", ""),
    ("length", "0.9144", "yd", "yard", ""),
    ("length", "1609.344", "mi", "mile", ""),
    ("length", "1852", "nmi", "nautical_mile", ""),
    ("length", "9460730472580800", "ly", "light-year light_year lightyear", ""),
    ("length", "149597870700", "au AU", "astronomical_unit", ""),
    ("mass", "0.001", "g", "gram gramme", _THOUSANDS),
    ("mass", "1000", "t", "tonne metric_ton", ""),
    ("mass", "0.45359237", "lb lbs", "pound", ""),
    ("mass", "0.028349523125", "oz", "ounce", ""),
    ("mass", "6.35029318", "st", "stone stones", ""),
    ("time", "1", "s sec secs", "second", "mμnp"),
    ("time", "60", "min mins", "minute", ""),
    ("time", "3600", "h hr hrs", "hour", ""),
    ("time", "86400", "d", "day", ""),
    ("time", "604800", "wk", "week", ""),
    ("months", "1", "", "month", ""),
    ("months", "12", "yr yrs", "year", ""),
    ("months", "120", "", "decade", ""),
    ("months", "1200", "", "century centuries", ""),
    ("volume", "0.001", "L l", "litre liter", "kcdmμ"),
    ("volume", "0.003785411784", "gal", "gallon", ""),
    ("volume", "0.000946352946", "qt", "quart", ""),
    ("volume", "0.000473176473", "", "pint", ""),
    ("volume", "0.0000295735295625", "", "fluid_ounce fl_oz", ""),
    ("area", "10000", "ha", "hectare", ""),
    ("area", "4046.8564224", "ac", "acre", ""),
    ("speed", "1", "m/s", "metre_per_second meter_per_second metres_per_second meters_per_second", ""),
    ("speed", "1000/3600", "km/h kmh kph km/hr", "km_per_hour kilometres_per_hour kilometers_per_hour", ""),
    ("speed", "1000", "km/s", "kilometres_per_second kilometers_per_second", ""),
    ("speed", "0.44704", "mph mi/h", "miles_per_hour", ""),
    ("speed", "0.3048", "ft/s", "feet_per_second", ""),
    ("speed", "1852/3600", "kn", "knot", ""),
    ("energy", "1", "J", "joule", _UP + "m"),
    ("energy", "3600", "Wh", "watt-hour watt_hour", _UP),
    ("energy", "4.184", "cal", "calorie", "k"),
    ("energy", "1.602176634e-19", "eV", "electronvolt electron_volt", _UP + "m"),
    ("power", "1", "W", "watt", _UP + "mμ"),
    ("force", "1", "N", "newton", "kM"),
    ("pressure", "1", "Pa", "pascal", "GMk"),
    ("pressure", "100000", "bar", "bar", "m"),
    ("pressure", "101325", "atm", "atmosphere", ""),
    ("frequency", "1", "Hz", "hertz", _UP),
    ("voltage", "1", "V", "volt", "kmμM"),
    ("current", "1", "A", "ampere amp", "kmμ"),
    ("resistance", "1", "Ω", "ohm", "kM"),
    ("data", "1", "bit", "bit", ""),
    ("data", "1", "", "bit", _UP),
    ("data", "8", "B", "byte", _UP),
    ("data", "8192", "KiB", "kibibyte", ""),
    ("data", "8388608", "MiB", "mebibyte", ""),
    ("data", "8589934592", "GiB", "gibibyte", ""),
    ("angle", "1", "° deg", "degree", ""),
    ("amount", "1", "mol", "mole", "kmμ"),
    # Of no fixed size: each agrees with itself only.
    ("ton", "1", "", "ton", ""),
    ("cup", "1", "", "cup", ""),
    ("spoon", "1", "tsp", "teaspoon", ""),
    ("spoon", "3", "tbsp", "tablespoon", ""),
    ("parsec", "1", "pc", "parsec", "kM"),
    ("share", "0.01", "% pct", "percent per_cent percentage_point", ""),
    ("share", "0.001", "‰", "permille per_mille", ""),
)
_PREFIXES = {
    "T": ("tera", 12), "G": ("giga", 9), "M": ("mega", 6), "k": ("kilo", 3), "d": ("deci", -1), "c": ("centi", -2),
    "m": ("milli", -3), "μ": ("micro", -6), "n": ("nano", -9), "p": ("pico", -12),
}  # fmt: skip
_CURRENCIES = {
    "USD": "$ US$ dollar buck", "EUR": "€ euro", "GBP": "£", "JPY": "¥ yen JP¥", "INR": "₹ rupee Rs",
    "RUB": "₽ rouble ruble", "KRW": "₩ won", "CHF": "CHF Fr", "CNY": "CN¥ yuan RMB", "CAD": "C$ CA$", "AUD": "A$ AU$",
    "NZD": "NZ$", "HKD": "HK$", "SGD": "S$", "BRL": "R$", "MXN": "MX$", "SEK": "", "NOK": "", "DKK": "", "PLN": "zł",
    "TRY": "₺", "ILS": "₪", "ZAR": "",
}  # fmt: skip
_TEMPERATURES = (
    Unit("°C", TEMPERATURE, Fraction(1), Fraction("273.15")),
    Unit("°F", TEMPERATURE, Fraction(5, 9), Fraction("459.67") * Fraction(5, 9)),
    Unit("K", TEMPERATURE),
)
_TEMPERATURE_NAMES = {
    "°C": "°C C degC celsius centigrade degrees_celsius degree_celsius degrees_centigrade degrees_C deg_C",
    "°F": "°F F degF fahrenheit degrees_fahrenheit degree_fahrenheit degrees_F deg_F",
    "K": "K kelvin kelvins",
}
AT_THE_END = frozenset({"in", "a", "au", "st", "c", "f", "d"})
"""Symbols that are also words or letters: they are units only if nothing follows."""


def _units() -> Iterator[tuple[str, Unit]]:
    """Yield every way to write a unit, as it is written; "_" stands for a blank."""
    for dimension, factor, symbols, names, prefixes in _TABLE:
        numerator, _, denominator = factor.partition("/")
        size = Fraction(numerator) / Fraction(denominator or 1)
        spelled = [
            *names.split(),
            *(f"{name}s" for name in names.split() if not name.endswith(("s", "z", "y", "feet"))),
        ]
        first = (symbols or names).split()[0]
        for written in [*symbols.split(), *spelled]:
            yield written, Unit(first, dimension, size)
        for prefix in prefixes:
            word, power = _PREFIXES[prefix]
            unit = Unit(prefix + first, dimension, size * Fraction(10) ** power)
            for written in symbols.split()[: 2 if dimension == "volume" else 1]:
                yield prefix + written, unit
                if prefix == "μ":
                    yield f"u{written}", unit
            for name in spelled:
                yield word + name, unit
    for unit in _TEMPERATURES:
        for written in _TEMPERATURE_NAMES[unit.name].split():
            yield written, unit


def _powers() -> Iterator[tuple[str, Unit]]:
    """Yield the areas and volumes made of lengths: km^2, km2, sq km, square kilometre."""
    for written, unit in list(_units()):
        if unit.dimension != "length":
            continue
        for power, dimension, word, short in ((2, "area", "square", "sq"), (3, "volume", "cubic", "cu")):
            made = Unit(f"{unit.name}^{power}", dimension, unit.factor**power)
            yield from ((f"{lead}_{written}", made) for lead in (word, short, f"{short}."))
            if len(written) <= len("nmi"):
                yield from ((f"{written}^{power}", made), (f"{written}{power}", made))
    for written in ("cc", "ccm"):
        yield written, Unit("cm^3", "volume", Fraction(1, 10**6))


def _money() -> Iterator[tuple[str, Unit]]:
    for code, written in _CURRENCIES.items():
        unit = Unit(code, MONEY + code)
        yield code, unit
        for name in written.split():
            yield name, unit
            if len(name) > len("won") and name.isalpha():
                yield f"{name}s", unit
    for name in ("¢", "cent", "cents"):  # of a dollar, as in the word problems of the public sets
        yield name, Unit("cent", f"{MONEY}USD", Fraction(1, 100))
    for name in ("pence", "penny"):
        yield name, Unit("penny", f"{MONEY}GBP", Fraction(1, 100))


class _Table(NamedTuple):
    """All units by their spelling, and by the lower-case spelling if that is unambiguous."""

    exact: dict[str, Unit]
    folded: dict[str, Unit]
    longest: int


@lru_cache(maxsize=1)
def _table() -> _Table:
    exact: dict[str, Unit] = {}
    for written, unit in [*_units(), *_powers(), *_money()]:
        exact.setdefault(written.replace("_", " "), unit)
    del exact["pm"]  # 5 pm is a time of day; nobody is asked for picometres by their symbol
    folded: dict[str, Unit | None] = {}
    for written, unit in exact.items():
        low = written.casefold()
        folded[low] = unit if folded.get(low, unit) == unit else None
    # A single capital is no small letter: 5 M are not 5 metres.
    clear = {low: unit for low, unit in folded.items() if unit is not None and len(low) > 1}
    return _Table(exact, clear, max(map(len, exact)))


def unit_at(text: str, at: int) -> tuple[Unit, int] | None:
    """Return the unit at a position in a text and its end; the longest one, if any.

    Capitals decide if they matter (mW, MW) and are ignored if they do not (KM).

    >>> unit_at("5 km/h", 2)[0].name, unit_at("5 kmx", 2), unit_at("9 in all", 2)
    ('km/h', None, None)
    """
    table = _table()
    for end in range(min(len(text), at + table.longest), at, -1):
        written = text[at:end]
        unit = table.exact.get(written) or table.folded.get(written.casefold())
        if unit is not None and _ends(text, written, end):
            return unit, end
    return None


def _ends(text: str, written: str, end: int) -> bool:
    """Whether the text after a unit lets it be one: no letter, and no word after a symbol that is also a word."""
    behind = text[end : end + 2]
    if written[-1:].isalnum() and (behind[:1].isalnum() or behind[:1] == "_"):
        return False
    return written.casefold() not in AT_THE_END or not behind.strip()[:1].isalnum()


def currency(written: str) -> Unit | None:
    """Return the currency of a sign or a three-letter code before a number."""
    unit = _table().exact.get(written)
    return unit if unit is not None and unit.dimension.startswith(MONEY) else None
