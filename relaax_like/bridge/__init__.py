"""Connections to the parameter server, to the metrics server, and to learners in other processes.

They use gRPC, pairs of sockets or, in one process, no transport.
"""
