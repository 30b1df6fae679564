"""The profile of a model: what a training step computes, for how long, and when each gradient is ready.

``python -m herringbone.profile script.py`` measures a training script and writes one. :func:`read` reads such files, and the
profiles of published models. The format is in docs/reference/model-profile.md.
"""

from __future__ import annotations

from .document import Buckets, Layer, Measured, Parameter, Profile, Published, Run
from .reading import FormatError, parsed, read
from .writing import text

__all__ = ["Buckets", "FormatError", "Layer", "Measured", "Parameter", "Profile", "Published", "Run", "parsed", "read", "text"]
