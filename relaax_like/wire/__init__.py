"""What both ends of a connection share: errors, arrays, spaces and frames.

Needs numpy and protobuf only, so that an environment's process starts in well under a second.
"""
