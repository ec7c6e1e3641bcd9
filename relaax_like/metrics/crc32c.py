"""CRC-32C of many short texts at once; record files have one for each record and its length."""

from collections.abc import Iterator, Sequence

import numpy as np

_POLYNOMIAL = 0x82F63B78  # reversed; Castagnoli et al. 1993
_MASK_DELTA = 0xA282EAD8
_ALL = np.uint32(0xFFFFFFFF)


def _make_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _make_table()


def compute_crc32c(texts: Sequence[bytes]) -> np.ndarray:
    """Computes the CRC-32C (RFC 3720, section 12.1) of each text, `[n] uint32`.

    Texts of the same length are processed together, byte by byte: many short ones take little
    longer than one.
    """
    sums = np.empty(len(texts), np.uint32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        data = b"".join([texts[place] for place in places.tolist()])
        columns = np.frombuffer(data, np.uint8).reshape(len(places), length).T
        crc = np.full(len(places), _ALL)
        for column in np.ascontiguousarray(columns):
            crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        sums[places] = crc ^ _ALL
    return sums


def mask_crcs(sums: np.ndarray) -> Iterator[bytes]:
    """Yields the form of checksums in record files: rotated by 15 bits, plus a constant.

    Each has 4 bytes, little-endian. See https://www.tensorflow.org/tutorials/load_data/tfrecord.

    Args:
      sums: `[n] uint32`.
    """
    rotated = (sums >> np.uint32(15)) | (sums << np.uint32(17))
    data = (rotated + np.uint32(_MASK_DELTA)).astype("<u4").tobytes()
    return (data[start : start + 4] for start in range(0, len(data), 4))
