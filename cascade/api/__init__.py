"""The functions of the package, each in a file with the result that it returns."""
