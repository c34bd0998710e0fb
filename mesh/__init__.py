"""Reach a peer, know who it is, keep what the mesh agrees on.

Knows nothing of sessions, tasks, knowledge or projects: it carries their bodies as bytes.
The packages above enter by :mod:`mesh.base` only, except ``node``, which composes.
"""
