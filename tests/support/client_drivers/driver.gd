# Makes the calls of a test with the client for Godot 3; see support/drivers.py. They come as lines
# over a TCP connection, because a script has no standard input.
extends SceneTree


func _init():
	var arguments = OS.get_environment("DRIVER_ARGUMENTS").split(" ")
	var calls = StreamPeerTCP.new()
	calls.connect_to_host("127.0.0.1", int(arguments[0]))
	while calls.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_msec(1)
	calls.set_no_delay(true)
	var client = load("res://rlx.gd").new()
	client.answer_seconds = 4.0
	var bytes = PoolByteArray()
	while calls.get_status() == StreamPeerTCP.STATUS_CONNECTED:
		var count = calls.get_available_bytes()
		if count == 0:
			OS.delay_usec(100)
			continue
		bytes.append_array(calls.get_partial_data(count)[1])
		if bytes[bytes.size() - 1] != 10:
			continue
		for line in bytes.get_string_from_utf8().split("\n", false):
			var answer = call_client(client, arguments[1], JSON.parse(line).result)
			if answer != null:
				calls.put_data((client.to_text(answer) + "\n").to_utf8())
		bytes = PoolByteArray()
	quit(0)


func call_client(client, address, message):
	var answer = null
	if "hello" in message:
		client.wanted = message["hello"].get("features", [])
		if client.open(address, message["hello"]):
			return {"ready": {"features": client.features}}
	elif "ping" in message or "scalars" in message:
		client.send(message)
		return null
	else:
		answer = client.ask(message)
	return {"error": client.error} if answer == null else answer
