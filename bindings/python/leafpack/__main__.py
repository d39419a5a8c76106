"""`python -m leafpack`."""

import sys

from leafpack._cli import main

sys.exit(main())
