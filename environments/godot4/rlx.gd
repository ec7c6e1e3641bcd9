# A client of an rlx server for Godot 4: JSON over a WebSocket, also in exports for the web.
# docs/json.md describes the messages, README.md how to use this file.
#
#   var client := preload("res://rlx.gd").new()
#   if await client.open("localhost:7001", {"name": "game", "observation": {"box": [4]}, ...}):
#       var answer: Variant = await client.ask({"act": {"observation": [0.5, -1, 0, 2]}})
#
# `open` and `ask` return when the answer is there, frames later. A game can also call `send`, and
# then `poll` once in each frame.
extends RefCounted

# Key -> the feature that it needs.
const NEEDS := {"present": "present", "executed": "executed", "overridden": "executed",
	"mask": "masks", "final_mask": "masks", "step_id": "step_id"}

# Settings: longest waits, for a connection and for an answer, from ping to ping; features to ask
# for; the longest message, in bytes, that can be sent and received.
var connect_seconds := 10.0
var answer_seconds := 60.0
var wanted: Array = ["executed", "hello_ping", "ping", "present", "step_id"]
var buffer_bytes := 1 << 20

# Features that are on.
var features: Array = []
# Why the training has ended; "": it has not. Then do not connect again.
var finished := ""
# After a failure: code, message and, sometimes, field and cure; else empty. Besides the server's
# codes: UNAVAILABLE for a lost connection, ANSWER for an answer that is not valid, CALL for a
# mistake of the caller, after which nothing was sent.
var error := {}

var _peer := WebSocketPeer.new()
var _address := ""
var _deadline := 0.0
var _max_bytes := 0
var _step_id := 0
var _has_odd_number := false


# Connects and sends the hello, whose keys are those of docs/json.md. Returns whether that worked.
#
# address: HOST:PORT, or a URL with ws:// or wss://.
func open(address: String, hello: Dictionary) -> bool:
	close()
	error = {}
	if finished:
		return _refuse("open", "finished: " + finished)
	_peer = WebSocketPeer.new()
	_peer.inbound_buffer_size = buffer_bytes
	_peer.outbound_buffer_size = buffer_bytes
	_address = address
	_max_bytes = buffer_bytes
	_step_id = 0
	features = []
	if _peer.connect_to_url(address if "://" in address else "ws://" + address) != OK:
		return _refuse("address", address + ", expected HOST:PORT, ws://... or wss://...")
	var until := _now() + connect_seconds
	while _peer.get_ready_state() == WebSocketPeer.STATE_CONNECTING and _now() < until:
		await Engine.get_main_loop().process_frame
		_peer.poll()
	if _peer.get_ready_state() != WebSocketPeer.STATE_OPEN:
		return _fail("UNAVAILABLE", "no connection to %s; is the rlx server running, and does it "
				% address + "allow the origin of this page?")
	if not OS.has_feature("web"):
		_peer.set_no_delay(true)
	var sent := hello.duplicate()
	sent["features"] = wanted.duplicate()
	sent["features"].sort()
	var answer: Variant = await ask({"hello": sent})
	if answer == null:
		return false
	var ready: Variant = answer.get("ready")
	if not (ready is Dictionary and ready.get("features") is Array):
		return _fail("ANSWER", address + ": not the answer to a hello")
	features = ready["features"]
	_max_bytes = mini(buffer_bytes, int(ready.get("max_message_bytes", buffer_bytes)))
	return true


# After a failure: whether it helps to pause, open again and begin a new episode.
func can_retry() -> bool:
	return not finished and error.get("code") in ["UNAVAILABLE", "OVERLOADED"]


func close() -> void:
	_peer.close()
	_peer.poll()


# Sends a message; returns its answer, or null: see `error`. Call it with `await`.
func ask(message: Dictionary) -> Variant:
	var answer: Variant = null
	if send(message):
		answer = poll()
		while answer == null and error.is_empty():
			await Engine.get_main_loop().process_frame
			answer = poll()
	return answer


# Sends a message, such as {"act": {...}}; PackedByteArrays are sent as raw bytes. Returns whether
# that worked. Then call `poll`, but not after "ping" and "scalars", which have no answer.
func send(message: Dictionary) -> bool:
	error = {}
	var verb: String = message.keys()[0]
	if verb in ["act", "reward_and_act", "reward_and_reset"]:
		for key in message[verb]:
			if key in NEEDS and NEEDS[key] not in features:
				return _refuse(key, "ready.features of this server does not list " + NEEDS[key]
						+ ": it is not in wanted, or the run does not support it")
		if "step_id" in features:
			_step_id += 1
			message = {verb: message[verb].merged({"step_id": _step_id}, true)}
	_has_odd_number = false
	var text := to_text(message)
	if _has_odd_number:
		return _refuse("message", "a number is not finite")
	if text.to_utf8_buffer().size() > _max_bytes:
		return _refuse("message", "more than %d bytes" % _max_bytes)
	if _peer.get_ready_state() != WebSocketPeer.STATE_OPEN or _peer.send_text(text) != OK:
		return _fail("UNAVAILABLE", "no connection to " + _address)
	_deadline = _now() + answer_seconds
	return true


# Returns the answer if it is there; else null, and `error` is empty while it is worth waiting.
func poll() -> Variant:
	_peer.poll()
	while _peer.get_available_packet_count() > 0:
		var answer: Variant = _read(_peer.get_packet().get_string_from_utf8())
		if answer == null or not "ping" in answer:
			return answer
		_deadline = _now() + answer_seconds
	if _peer.get_ready_state() != WebSocketPeer.STATE_OPEN:
		_fail("UNAVAILABLE", "lost the rlx server " + _address)
	elif _now() > _deadline:
		_fail("UNAVAILABLE", "no answer of %s within %s s" % [_address, answer_seconds])
	return null


# Makes JSON of a value. Floats without a fraction are written as integers.
func to_text(value: Variant) -> String:
	return JSON.stringify(_spell(value), "", false, true)


func _spell(value: Variant) -> Variant:
	match typeof(value):
		TYPE_FLOAT:
			if not is_finite(value):
				_has_odd_number = true
				return null
			return int(value) if value == floorf(value) and absf(value) < 1e15 else value
		TYPE_DICTIONARY:
			var spelled := {}
			for key in value:
				spelled[key] = _spell(value[key])
			return spelled
		TYPE_PACKED_BYTE_ARRAY:
			return {"base64": Marshalls.raw_to_base64(value)}
		TYPE_ARRAY, TYPE_PACKED_FLOAT32_ARRAY, TYPE_PACKED_FLOAT64_ARRAY:
			return Array(value).map(_spell)
	return value


func _read(text: String) -> Variant:
	var json := JSON.new()
	var answer: Variant = json.data if json.parse(text) == OK else null
	if not answer is Dictionary or answer.get("step_id", _step_id) != _step_id:
		_fail("ANSWER", _address + " sent what is not an answer of an rlx server: " + text.left(60))
		return null
	if "error" in answer:
		close()
		error = answer["error"]
		return null
	if "finished" in answer:
		finished = answer["finished"]
		close()
	return answer


func _refuse(field: String, what: String) -> bool:
	error = {"code": "CALL", "field": field, "message": field + ": " + what}
	return false


func _fail(code: String, message: String) -> bool:
	close()
	error = {"code": code, "message": message}
	return false


func _now() -> float:
	return Time.get_ticks_msec() / 1000.0
