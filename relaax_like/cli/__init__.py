"""Commands. Each is a thin face over `launch`."""
