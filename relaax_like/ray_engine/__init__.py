"""Runs the processes of a topology on the machines of a Ray cluster."""
