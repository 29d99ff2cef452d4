"""Doctests of the package run as the tests do: nothing goes to the trace store of the person who runs them."""

import os

os.environ["CASCADE_TRACES"] = "off"
