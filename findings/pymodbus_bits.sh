#!/usr/bin/env bash
# pymodbus 3.16.1.
# Guess: a register that is converted to BITS gives its lowest bit first.
# Seen: it gives the upper byte first, and within each byte the lowest bit: the lowest bit of the register is at index 8,
# its highest at index 7. Bits are converted to registers in the same order, so a round trip does not show it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pymodbus==3.16.1
cd "$folder"
venv/bin/python - <<'PYTHON'
from pymodbus.client.mixin import ModbusClientMixin as Client

BITS = Client.DATATYPE.BITS
places = {}
for bit in range(16):
    bits = Client.convert_from_registers([1 << bit], BITS)
    assert Client.convert_to_registers(bits, BITS) == [1 << bit]
    places[bit] = bits.index(True)
print("bit of the register: index of the list", places)
assert places == {bit: (bit + 8) % 16 for bit in range(16)}
PYTHON
echo "as recorded"
