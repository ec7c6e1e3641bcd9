"""An algorithm folder; loaded by path."""
