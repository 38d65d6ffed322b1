"""``python -m ptxc``: the same as the command ``ptxc``."""

import sys

from ptxc.cli import main

sys.exit(main())
