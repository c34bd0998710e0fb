"""What an outsider may ask: an index of committed text, grants, and cited answers.

Sees ``mesh.base`` and ``hive.unit`` only. Its server process loads neither the rest of mesh nor node.
"""
