"""``python -m kimi_nb``: the command line."""

import sys

from kimi_nb.cli.main import main

sys.exit(main())
