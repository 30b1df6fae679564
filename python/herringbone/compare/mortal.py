"""A process that imports this ends when its parent does: for the server that forks workers, which can be told modules only."""

from .namespaces import end_with_parent

end_with_parent()
