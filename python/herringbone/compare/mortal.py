"""A process that imports this ends when its parent does: for the server that forks workers, which can be told modules only.

As a program it is the ``herringbone`` command, which then ends with its parent, too. Its first word is the parent's number.
"""

from __future__ import annotations

import os
import sys

from .namespaces import end_with_parent

end_with_parent()

if __name__ == "__main__":
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one has ended")
    from .._herringbone import main

    sys.exit(main(sys.argv[2:]))
