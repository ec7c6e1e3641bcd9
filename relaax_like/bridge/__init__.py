"""The wire between agents and the parameter server, and its in-process twin."""
