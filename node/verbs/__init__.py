"""What the node answers on its control socket: one module a command group. They ask the parts and shape the JSON."""
