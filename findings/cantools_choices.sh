#!/usr/bin/env bash
# cantools 45.1.0.
# Guess: a signal with named values decodes to a str.
# Seen: to an object that is equal to the str, but is not one: it has no hash, so that it cannot be looked up in a dict,
# and json.dumps refuses it. `decode_choices=False` gives the number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cantools==45.1.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import json

import cantools

DBC = '''VERSION ""
NS_ :
BS_:
BU_: N
BO_ 1 M: 1 N
 SG_ B : 0|8@1+ (1,0) [0|3] "" N
VAL_ 1 B 0 "off" 1 "on" ;
'''
message = cantools.database.load_string(DBC).messages[0]
value = message.decode(b"\x01")["B"]
assert value == "on" and not isinstance(value, str)
for use in (hash, json.dumps):
    try:
        use(value)
    except TypeError as error:
        print(f"{use.__name__}: {error}")
    else:
        raise SystemExit(f"{use.__name__} works")
assert message.decode(b"\x01", decode_choices=False) == {"B": 1}
PYTHON
echo "as recorded"
