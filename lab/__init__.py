"""Where jobs of ranks are started and ended: by a server that has imported torch and forks them, or as fresh processes.

* :mod:`lab.job` starts jobs, hears them and ends them. Tests, pages and benches use nothing else.
* :mod:`lab.hosts` makes hosts, and :mod:`lab.events` hears ranks that say what happens to them.
* :mod:`lab.server` is the process that forks; :mod:`lab.shelf` holds its imports, :mod:`lab.rank` makes a fork what a fresh
  process is. :mod:`lab.stand_in` is the Python that launchers are given.
"""
