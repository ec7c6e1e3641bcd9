"""The processes of a run, on one machine or on those of a Ray cluster, and its folder."""
