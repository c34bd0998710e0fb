"""The only door through which ``hive`` and ``query`` see the mesh: values, codec, crypto, clock, database, errors, ports."""
