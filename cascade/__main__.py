"""`python -m cascade` is the command `cascade`, also where its script is not on the path."""

from cascade.cli.main import main

if __name__ == "__main__":
    main()
