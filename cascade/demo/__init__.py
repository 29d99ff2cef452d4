"""The demonstrations that ship with the package: requests of an application, and short questions."""
