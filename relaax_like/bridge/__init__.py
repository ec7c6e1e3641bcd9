"""Connections to the parameter server, to the metrics server, and to learners in other processes.

They use gRPC, pairs of sockets or, in one process, no transport.
"""

import os

# Else a peer writes any text into the log: that of a GOAWAY frame, which needs no token. gRPC reads
# it when it is loaded, so this comes before all modules that load it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
