"""The common part of the modules for torch and numpy; Horovod has the same names in ``horovod.common``."""
