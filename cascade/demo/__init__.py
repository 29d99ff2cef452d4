"""The demo that ships with the package: requests of an application."""
