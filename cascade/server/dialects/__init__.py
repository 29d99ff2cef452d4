"""Translators of the APIs that clients speak, one for each. The cascade itself knows none of them."""
