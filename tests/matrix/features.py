"""All features, in the order of the table."""

import moving
import groups
import models
from checks import FEATURES

__all__ = ["FEATURES", "groups", "models", "moving"]
