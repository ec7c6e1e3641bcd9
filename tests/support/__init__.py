"""What several tests share; on the path as `support` (see pytest's `pythonpath`)."""
