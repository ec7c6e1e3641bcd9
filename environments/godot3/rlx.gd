# A client of an rlx server for Godot 3: lines of JSON over TCP. docs/json.md describes the
# messages, README.md how to use this file.
#
#   var client = load("res://rlx.gd").new()
#   if client.open("localhost:7001", {"name": "game", "observation": {"box": [4]}, ...}):
#       var answer = client.ask({"act": {"observation": [0.5, -1, 0, 2]}})
#
# `open` and `ask` block. A game calls `send`, and then `poll` once in each frame.
extends Reference

# Key -> the feature that it needs.
const NEEDS = {"present": "present", "executed": "executed", "overridden": "executed",
	"mask": "masks", "final_mask": "masks", "agents": "agents", "games": "agents"}
const MAX_BYTES = 1 << 24
const MAX_DEPTH = 64

# Settings: longest waits, for an answer from ping to ping, and features to ask for.
var connect_seconds = 10.0
var answer_seconds = 60.0
var wanted = ["executed", "hello_ping", "ping", "present", "slot_versions", "step_id"]

# Features that are on.
var features = []
# Why the training has ended; "": it has not. Then do not connect again.
var finished = ""
# After a failure: code, message and, sometimes, field and cure; else empty. Besides the server's
# codes: UNAVAILABLE for a lost connection, ANSWER for an answer that is not valid, CALL for a
# mistake of the caller, after which nothing was sent.
var error = {}

var _peer = StreamPeerTCP.new()
var _address = ""
var _bytes = PoolByteArray()
var _lines = []
var _deadline = 0.0
var _max_bytes = 0
var _step_id = 0
var _has_odd_number = false


# Connects and sends the hello, whose keys are those of docs/json.md. Returns whether that worked.
func open(address, hello):
	var later = {}
	for key in ["agents", "games"]:
		if key in hello:
			later[key] = hello[key]
	var first = hello.duplicate()
	first["features"] = wanted + (["agents"] if later else [])
	first["features"].sort()
	var full = first.duplicate()
	for key in later:
		first.erase(key)
	# A server tells its features after the hello: what needs one is sent in a second hello.
	return _greet(address, first) and _require(later) and (not later or _greet(address, full))


# After a failure: whether it helps to pause, open again and begin a new episode.
func can_retry():
	return not finished and error.get("code") in ["UNAVAILABLE", "OVERLOADED"]


func close():
	_peer.disconnect_from_host()


# Sends a message and waits for its answer; null: see `error`.
func ask(message):
	var answer = null
	if send(message):
		answer = poll()
		var delay = 20
		while answer == null and not error:
			OS.delay_usec(delay)
			delay = min(2 * delay, 1000)
			answer = poll()
	return answer


# Sends a message, such as {"act": {...}}; PoolByteArrays are sent as raw bytes. Returns whether
# that worked. Then call `poll`, but not after "ping" and "scalars", which have no answer.
func send(message):
	error = {}
	for verb in message:
		if typeof(message[verb]) == TYPE_DICTIONARY and not _require(message[verb]):
			return false
	if "step_id" in features and not ("ping" in message or "scalars" in message):
		_step_id += 1
		message = message.duplicate(true)
		message.values()[0]["step_id"] = _step_id
	_has_odd_number = false
	var line = (to_text(message) + "\n").to_utf8()
	if _has_odd_number or line.size() > _max_bytes:
		return _refuse("message", "a number is not finite" if _has_odd_number
				else "%d bytes, the server reads %d" % [line.size(), _max_bytes])
	if _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED or _peer.put_data(line) != OK:
		return _fail("UNAVAILABLE", "no connection to " + _address)
	_deadline = _now() + answer_seconds
	return true


# Returns the answer if it is there; else null, and `error` is empty while it is worth waiting.
func poll():
	while true:
		if not _lines:
			_receive()
			if not _lines or error:
				return null
		var answer = _read(_lines.pop_front())
		if answer == null or not "ping" in answer:
			return answer
		_deadline = _now() + answer_seconds
	return null


# Makes JSON of a value; floats keep their 16 digits, which JSON.print cuts to 6.
func to_text(value):
	match typeof(value):
		TYPE_NIL:
			return "null"
		TYPE_BOOL:
			return "true" if value else "false"
		TYPE_INT:
			return str(value)
		TYPE_REAL:
			return _number_to_text(value)
		TYPE_STRING:
			return JSON.print(value)
		TYPE_RAW_ARRAY:
			return "{\"base64\":\"%s\"}" % Marshalls.raw_to_base64(value)
	var parts = PoolStringArray()
	if typeof(value) == TYPE_DICTIONARY:
		for key in value:
			parts.append(JSON.print(key) + ":" + to_text(value[key]))
		return "{" + parts.join(",") + "}"
	for one in value:
		parts.append(to_text(one))
	return "[" + parts.join(",") + "]"


func _number_to_text(number):
	if is_nan(number) or is_inf(number):
		_has_odd_number = true
		return "null"
	if number == floor(number) and abs(number) < 1e15:
		return str(int(number))
	var exponent = int(max(-300, floor(log(abs(number)) / log(10))))
	return "%.16fe%d" % [number / pow(10, exponent), exponent]


func _greet(address, hello):
	close()
	if finished:
		return _refuse("open", "finished: " + finished)
	_address = address
	features = []
	_bytes = PoolByteArray()
	_lines = []
	_max_bytes = 1 << 20
	_step_id = 0
	var split = address.find_last(":")
	var port = address.substr(split + 1)
	if split < 1 or not port.is_valid_integer():
		return _refuse("address", address + ", expected HOST:PORT")
	var host = address.substr(0, split).lstrip("[").rstrip("]")
	var until = _now() + connect_seconds
	var status = _peer.connect_to_host(host, int(port))
	while _peer.get_status() == StreamPeerTCP.STATUS_CONNECTING and _now() < until:
		OS.delay_msec(1)
	if status != OK or _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		return _fail("UNAVAILABLE", "no connection to " + address + "; is the rlx server running?")
	_peer.set_no_delay(true)
	var answer = ask({"hello": hello})
	var ready = null if answer == null else answer.get("ready")
	if typeof(ready) == TYPE_DICTIONARY and typeof(ready.get("features")) == TYPE_ARRAY:
		features = ready["features"]
		_max_bytes = int(ready.get("max_message_bytes", _max_bytes))
		return true
	return false if error else _fail("ANSWER", address + ": not the answer to a hello")


func _require(keys):
	for key in keys:
		if key in NEEDS and not NEEDS[key] in features:
			return _refuse(key, "ready.features of this server does not list " + NEEDS[key]
					+ ": it is not in wanted, or the run does not support it")
	return true


# Takes what has come; if lines are complete, moves them to `_lines`.
func _receive():
	var count = _peer.get_available_bytes()
	if count > 0:
		_bytes.append_array(_peer.get_partial_data(count)[1])
		if _bytes.size() > MAX_BYTES:
			_fail("ANSWER", _address + " sent more than %d bytes" % MAX_BYTES)
		elif _bytes[_bytes.size() - 1] == 10:
			_lines = Array(_bytes.get_string_from_utf8().split("\n", false))
			_bytes = PoolByteArray()
	elif _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		_fail("UNAVAILABLE", "lost the rlx server " + _address)
	elif _now() > _deadline:
		_fail("UNAVAILABLE", "no answer of %s within %s s" % [_address, answer_seconds])


func _read(line):
	# JSON.parse ends the process if there are too many lists within lists.
	var depth = 0
	if line.split("[").size() + line.split("{").size() > MAX_DEPTH:
		for byte in line.to_utf8():
			depth += int(byte in [91, 123]) - int(byte in [93, 125])
			if depth > MAX_DEPTH:
				break
	var parsed = JSON.parse(line) if depth <= MAX_DEPTH else null
	var answer = parsed.result if parsed != null and parsed.error == OK else null
	if typeof(answer) != TYPE_DICTIONARY or answer.get("step_id", _step_id) != _step_id:
		_fail("ANSWER", _address + " sent what is not an answer of an rlx server: " + line.left(60))
		return null
	if "error" in answer:
		_fail("", "")
		error = answer["error"]
		return null
	if "finished" in answer:
		finished = answer["finished"]
		close()
	return answer


func _refuse(field, what):
	error = {"code": "CALL", "field": field, "message": field + ": " + what}
	return false


func _fail(code, message):
	close()
	error = {"code": code, "message": message}
	return false


func _now():
	return OS.get_ticks_msec() / 1000.0
