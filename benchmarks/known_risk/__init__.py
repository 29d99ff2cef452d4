"""Guarantees measured on populations of which every risk is known: the parts of `validity.py`."""
