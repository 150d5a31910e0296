"""`python -m hftune`: the `hftune` command."""

from hftune.cli import main

if __name__ == "__main__":
    main()
