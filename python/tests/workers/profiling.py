"""`python -m herringbone.profile` in a process that has imported torch."""

import sys

import herringbone.torch  # noqa: F401
from herringbone.profile.__main__ import main

sys.exit(main(sys.argv[1:]))
