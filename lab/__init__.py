"""Starts and ends jobs of ranks: a server that has imported torch forks them, or they are fresh processes.

* :mod:`lab.job` starts jobs, reads their output and ends them. Tests, pages and benches use nothing else.
* :mod:`lab.hosts` makes hosts, and :mod:`lab.events` reads events that ranks report.
* :mod:`lab.server` is the process that forks; :mod:`lab.shelf` holds its imports, :mod:`lab.rank` makes a fork equivalent to a
  fresh process. :mod:`lab.stand_in` is the Python that launchers are given.
"""
