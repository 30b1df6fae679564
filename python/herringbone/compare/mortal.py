"""A process that imports this ends when its parent does: for the server that forks workers, which can be told modules only.

As a program it is the ``herringbone`` command, which then ends with its parent, too.
"""

from __future__ import annotations

import sys

from .._herringbone import main
from .namespaces import end_with_parent

end_with_parent()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
