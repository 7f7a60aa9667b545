"""`python -m rabit.bench` measures on the ranks of the job in which it runs."""

import sys

from rabit.bench.program import main

if __name__ == "__main__":
    sys.exit(main())
