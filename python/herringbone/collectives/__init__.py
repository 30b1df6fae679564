"""The collectives and messages of a :class:`herringbone.Communicator`, as the classes that it is composed of."""
