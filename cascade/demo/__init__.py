"""The demonstration in the package: requests of an application."""
