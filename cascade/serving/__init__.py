"""Serving questions under certificates (`certified`, `monitors`) and caps (`spending`), if these are set."""
