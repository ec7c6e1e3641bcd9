"""Commands: thin wrappers around the other packages, most of them around `launch`."""
