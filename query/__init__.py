"""What an outsider may ask: an index of committed text, grants, and cited answers.

Sees ``mesh.base`` and ``hive.unit`` only. Two programs meet in one file: ``query.indexer`` reads a repository with git
and writes ``index/PROJECT.db``; ``query.serve`` opens that file read-only beside the grants database and answers. The
server never imports the indexer, git or a parser, so no question can reach a file.
"""
