"""a2c with a model that cannot act in NumPy; loaded by path."""
