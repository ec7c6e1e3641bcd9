"""The connection between agents and the parameter server, over the network or in-process."""
