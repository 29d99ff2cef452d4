"""Providers answer requests. A provider transfers data; `guard` checks it."""
