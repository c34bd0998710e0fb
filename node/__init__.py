"""This machine: the daemon, its command line, the agents' sessions and the tasks it runs for others."""

VERSION = "0.1.0"
