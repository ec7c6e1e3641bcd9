"""Checksums of records are those that TensorBoard's own writer and reader use."""

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.metrics.crc32c import compute_crc32c, mask_crcs
from relaax_like.metrics.recorder import _pack_records
from relaax_like.metrics.tensorboard_files import Event, RecordWriter, Summary, masked_crc32c


def test_the_checksum_of_the_standard_check_text() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeros; and the usual check value.
    assert compute_crc32c([b"123456789", bytes(32), b""]).tolist() == [0xE3069283, 0x8A9136AA, 0]


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_many_texts_have_the_checksums_of_each(texts: list[bytes]) -> None:
    found = [int.from_bytes(part, "little") for part in mask_crcs(compute_crc32c(texts))]
    assert found == [int(masked_crc32c(text)) for text in texts]


def test_records_are_those_of_tensorboards_writer() -> None:
    events = [Event(wall_time=1.0, file_version="brain.Event:2")]
    for number in range(50):
        value = Summary.Value(tag="n" * (1 + number % 7), simple_value=np.float32(number))
        events.append(Event(wall_time=1.5, step=number**3, summary=Summary(value=[value])))
    expected = io.BytesIO()
    writer = RecordWriter(expected)
    for event in events:
        writer.write(event.SerializeToString())
    assert _pack_records(events) == expected.getvalue()
