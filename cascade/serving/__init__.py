"""Serves questions under certificates (`certified`, `monitors`) and caps (`spending`), where they are set."""
