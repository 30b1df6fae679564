"""`herringbone compare` in a process that has imported torch: its workers are forks of it, and no server imports torch again."""

import multiprocessing
import sys

import herringbone.torch  # noqa: F401
import torch._dynamo  # noqa: F401
from herringbone.compare import job
from herringbone.compare.__main__ import main

job.FORKING = multiprocessing.get_context("fork")
sys.exit(main(sys.argv[1:]))
