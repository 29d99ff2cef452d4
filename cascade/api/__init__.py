"""What the package can do, a file for each act: the function, and the result that it returns."""
