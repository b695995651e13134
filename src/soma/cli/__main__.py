"""`python -m soma.cli`, as the workflow calls it."""

import sys

from soma.cli import main

sys.exit(main())
