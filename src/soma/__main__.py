"""`python -m soma`, the same as `soma`."""

import sys

from soma.cli import main

sys.exit(main())
