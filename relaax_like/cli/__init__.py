"""Commands. Each one is a thin wrapper around `launch`."""
