# Makes the calls of a test with the client for Godot 4; see support/drivers.py. The page in which
# the engine runs has a queue of them.
extends Node


func _ready() -> void:
	var client := preload("res://rlx.gd").new()
	client.answer_seconds = 4.0
	while true:
		var call: Variant = JavaScriptBridge.eval("takeCall()")
		if call:
			var parts: Array = JSON.parse_string(call)
			var answer: Variant = await call_client(client, parts[0], parts[1], parts[2])
			var text: String = JSON.stringify(client.to_text(answer))
			JavaScriptBridge.eval("giveAnswer(%s)" % text)
		await get_tree().process_frame


func call_client(client: RefCounted, message: Dictionary, address: String, ca: String) -> Variant:
	var answer: Variant = null
	if "hello" in message:
		client.wanted = message["hello"].get("features", [])
		if await client.open(("wss://" if ca else "") + address, message["hello"]):
			return {"ready": {"features": client.features}}
	elif "ping" in message or "scalars" in message:
		client.send(message)
		return null
	else:
		answer = await client.ask(message)
	return {"error": client.error} if answer == null else answer
