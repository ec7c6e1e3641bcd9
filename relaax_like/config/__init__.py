"""One YAML file is one experiment: read, checked whole, and turned into typed objects."""
