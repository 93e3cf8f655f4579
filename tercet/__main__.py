"""``python -m tercet`` is ``tercet``."""

from tercet.cli import main

if __name__ == "__main__":
    main()
