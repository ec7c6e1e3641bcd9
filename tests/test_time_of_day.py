"""The time of day can jump, so nothing is waited for or ordered by it."""

import re

from support.cluster import ROOT

READS = re.compile(r"\btime\.(time|time_ns|strftime|localtime)\(|\bdatetime\.(now|utcnow|today)\b")
# Who reads it, and why that is no harm when it jumps.
READERS = {
    "bridge/client.py": "the life of a client, whose name nobody else ever has",
    "config/run_folder.py": "the name of a folder",
    "runs/folders/run_folder.py": "shown",
    "learn/remote_learner.py": "the life of a client, whose name nobody else ever has",
    "metrics/buffered.py": "the time of a point on a curve",
    "metrics/recorder.py": "the time of a point on a curve, the name of a file",
    "nn/compiled_files.py": "whether a file that was never finished is old; else it is kept longer",
    "parameter_server/applier.py": "the epoch of a server without a folder",
    "parameter_server/learner_lease.py": "the first term of a lease; after that it is counted",
    "parameter_server/folder.py": "the first epoch of a folder; after that it is counted",
    "runs/processes/run_record.py": "shown",
    "wire/tls.py": "whether to warn of a certificate that expires",
    "wire/tracing.py": "the place of a process on the common axis",
}


def test_the_time_of_day_is_read_by_few_and_decides_nothing():
    package = ROOT / "relaax_like"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")) and READS.search(path.read_text())
    }
    assert found == set(READERS)
