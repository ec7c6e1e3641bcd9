"""Connections of agents, learners and recorders to the parameter server: gRPC, or in-process."""
