"""TensorBoard's messages and its writer of records, imported without boto3.

Where boto3 is installed, TensorBoard imports it, for `s3://` paths that it is never given here: ten
megabytes and half the time of the import.
"""

import sys
from typing import Any

_modules: dict[str, Any] = sys.modules
_blocked = "boto3" not in _modules
if _blocked:
    _modules["boto3"] = None  # an import of it fails, as if it were not installed
try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    from tensorboard.summary.writer.record_writer import RecordWriter
finally:
    if _blocked:
        del _modules["boto3"]

__all__ = ["Event", "HistogramProto", "RecordWriter", "Summary", "masked_crc32c"]
