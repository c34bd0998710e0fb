"""The whole product on one machine, checked step by step: ``hivemesh demo``.

It uses the command line only, in processes of its own, as a person would; nothing here reaches into the node.
"""
