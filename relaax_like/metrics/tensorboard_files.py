"""TensorBoard's messages and its record writer, imported without boto3 and fsspec.

If these are installed, TensorBoard imports them, for paths such as `s3://...`, which are not used
here: ten megabytes and half of the import time.
"""

import sys
from typing import Any

_modules: dict[str, Any] = sys.modules
_blocked = [name for name in ("boto3", "fsspec") if name not in _modules]
for _name in _blocked:
    _modules[_name] = None  # importing it fails, as if it were not installed
try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    from tensorboard.summary.writer.record_writer import RecordWriter
finally:
    for _name in _blocked:
        del _modules[_name]

__all__ = ["Event", "HistogramProto", "RecordWriter", "SessionLog", "Summary", "masked_crc32c"]
