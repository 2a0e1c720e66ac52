"""Lets ``python -m tilewright`` do what the command ``tilewright`` does."""

import sys

from tilewright.cli import main

if __name__ == "__main__":
    sys.exit(main())
