"""In: the command line. Out: the exit status. `python -m localstack` is what `deploy/local/stack` runs."""

import sys

from localstack.cli import main

sys.exit(main(sys.argv[1:]))
