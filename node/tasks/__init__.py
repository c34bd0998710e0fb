"""Runs: commands this machine asks of others, and commands it runs for them.

The cores decide (``policy``: who may; ``delegation``: what follows from what; ``asks``: who may answer; ``trees`` and
``belongings``: what may travel), the ledger remembers, and one small supervisor process a task does the running and
outlives the node. Nothing here knows how links are made: it sees other machines only through ``mesh.base.ports``.
"""
