"""`python -m rabit.launch` is rabitrun."""

import sys

from rabit.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
