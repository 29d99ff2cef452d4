"""Fitted policies beside the simple ways to serve a cascade at a certified regret, on the same rows."""
