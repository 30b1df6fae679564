"""What the modules for torch and for numpy share; Horovod has the same names in ``horovod.common``."""
