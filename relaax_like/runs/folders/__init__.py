"""A run's folder: what lies in it, copies, recorders; and what is shown: tables, plots, traces."""
