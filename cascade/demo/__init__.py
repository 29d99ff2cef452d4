"""The demonstrations in the package: requests of an application, and short questions."""
