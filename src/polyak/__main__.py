"""`python -m polyak` is `polyak`."""

import sys

from polyak.cli import main

sys.exit(main())
