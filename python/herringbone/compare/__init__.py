"""Training under several architectures in turn, for a comparison: ``herringbone compare``, or ``python -m herringbone.compare``.

One network is trained from one seed by real processes under each architecture: sums of gradients, a parameter server,
periodic averaging. :mod:`herringbone.compare.architectures` lists them; add a new one there.
"""
