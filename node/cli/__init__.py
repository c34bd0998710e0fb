"""The command line: one room a command group, loaded only when its command is called."""
