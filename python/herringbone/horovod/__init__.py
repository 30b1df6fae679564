"""Horovod's interface, so that its programs run on Herringbone with one import changed.

With torch::

    import herringbone.horovod.torch as hvd

and without torch :mod:`herringbone.horovod.numpy`. ``HERRINGBONE_REPLACE=horovod`` in the environment makes ``import
horovod.torch`` find these modules, so that a program runs unchanged.

:func:`run` calls a function of a program as the ranks of a job.
"""

from ..listing import listing
from .runner import run

__version__ = "0.28.1"
"""The version of Horovod whose interface this is."""

__all__ = ["run"]

__dir__ = listing(__name__)
