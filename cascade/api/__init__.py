"""The public functions of the package; each has a file of its own, together with the result class that it returns."""
