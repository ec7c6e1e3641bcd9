"""Generated protobuf modules of package `relaax.v1` (`make protos`)."""
