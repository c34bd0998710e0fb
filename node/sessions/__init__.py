"""The agents' sessions of this machine: their transcripts read as they grow, what state each is in, what it used.

This package knows the files Claude Code and Codex write and the processes that write them. It knows nothing of the
mesh: it hands out :class:`~node.sessions.inventory.SessionBody` values, which ``node.app`` seals and publishes, and
the decisions a user made at a prompt, which ``hive`` learns from.

Rooms: ``formats`` (one line as a value), ``claude`` and ``codex`` (bytes to lines' values), ``fold`` (lines to what a
file says), ``status`` (evidence to one word), ``cost`` (tokens to money), ``inventory`` (what travels and what is
shown), ``store`` (sessions.db), ``reading`` (new bytes of one file), ``survey`` (which files there are), ``place``
(project and branch of a folder), ``processes`` (who is alive), ``detail`` (one session for ``session show``),
``watch`` (the loop).
"""
