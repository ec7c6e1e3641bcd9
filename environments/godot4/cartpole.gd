# CartPole-v1 with Gymnasium's physics, as a client of an rlx server; see README.md.
extends Node

const MAX_STEPS := 500

var flags := {"--rlx-server": ["localhost:7001"], "--name": ["godot4"], "--num-envs": ["1"],
	"--token-file": [""], "--retry-sleep": ["1", "10"]}
# Of each slot: x, its speed, the angle, its speed; and the steps of the episode.
var poles: Array[Array] = []
var steps: Array[int] = []


func _ready() -> void:
	run()


func stop(status: int, text: String) -> void:
	if status == 0:
		print("godot4: " + text)
	else:
		printerr("godot4: " + text)
	get_tree().quit(status)


# A page has no command line: its flags are the part of its address after #.
func read_arguments() -> PackedStringArray:
	if not OS.has_feature("web"):
		return OS.get_cmdline_user_args()
	var text: Variant = JavaScriptBridge.eval("decodeURIComponent(location.hash.slice(1))")
	return str(text).split(" ", false)


func run() -> void:
	var mistake := parse(read_arguments())
	var hello := {"name": flags["--name"][0], "slots": int(flags["--num-envs"][0]),
		"observation": {"box": [4]}, "action": {"discrete": 2}}
	var path: String = flags["--token-file"][0]
	if path:
		# Godot's own working directory is the project.
		path = OS.get_environment("PWD").path_join(path) if path.is_relative_path() else path
		var file := FileAccess.open(path, FileAccess.READ)
		if file == null:
			mistake = path + ": cannot be read"
		else:
			hello["token"] = file.get_line()
	if mistake:
		return stop(2, mistake)
	poles.resize(hello["slots"])
	steps.resize(hello["slots"])
	var client := preload("res://rlx.gd").new()
	while true:
		if await client.open(flags["--rlx-server"][0], hello):
			await play(client)
		if client.finished:
			return stop(0, client.finished)
		if not client.can_retry():
			return stop(1 if client.error["code"] == "AGENT_FAILED" else 2, client.error["message"])
		var limits: Array = flags["--retry-sleep"]
		var pause := randf_range(float(limits[0]), float(limits[1]))
		print("godot4: %s; retrying in %.1f s" % [client.error["message"], pause])
		await get_tree().create_timer(pause).timeout


# Reads the command line; returns what is wrong with it.
func parse(arguments: PackedStringArray) -> String:
	var i := 0
	while i < arguments.size():
		var flag := arguments[i]
		if flag not in flags:
			return flag + ": unknown; README.md lists the flags"
		var count: int = flags[flag].size()
		if i + count >= arguments.size():
			return flag + ": expected a value after it"
		for j in count:
			flags[flag][j] = arguments[i + 1 + j]
		i += 1 + count
	return "" if int(flags["--num-envs"][0]) > 0 else "--num-envs: expected 1 or more"


# Plays until the training has finished, or the connection is lost.
func play(client: RefCounted) -> void:
	for slot in poles.size():
		reset(slot)
	var answer: Variant = await client.ask({"act": {"observation": poles}})
	while answer != null and not client.finished:
		answer = await client.ask({"reward_and_act": step(answer["action"])})


func reset(slot: int) -> void:
	poles[slot] = range(4).map(func(_i: int) -> float: return randf_range(-0.05, 0.05))
	steps[slot] = 0


# Moves all slots; returns what is sent of it.
func step(actions: Array) -> Dictionary:
	var sent := {"reward": [], "observation": [], "terminated": [], "truncated": [],
		"final_observation": []}
	for slot in poles.size():
		var fell := push(poles[slot], int(actions[slot]))
		steps[slot] += 1
		var is_cut := not fell and steps[slot] == MAX_STEPS
		sent["reward"].append(1)
		sent["terminated"].append(fell)
		sent["truncated"].append(is_cut)
		sent["final_observation"].append(poles[slot])
		if fell or is_cut:
			reset(slot)
		sent["observation"].append(poles[slot])
	if not true in sent["terminated"] and not true in sent["truncated"]:
		sent.erase("final_observation")
	return sent


# Pushes the cart for 0.02 s, to the left (0) or to the right (1); returns whether the pole fell.
func push(pole: Array, action: int) -> bool:
	var sine := sin(pole[2])
	var cosine := cos(pole[2])
	var force: float = ((10.0 if action == 1 else -10.0) + 0.05 * pole[3] * pole[3] * sine) / 1.1
	var inertia := 0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1)
	var turn := (9.8 * sine - cosine * force) / inertia
	pole[0] += 0.02 * pole[1]
	pole[1] += 0.02 * (force - 0.05 * turn * cosine / 1.1)
	pole[2] += 0.02 * pole[3]
	pole[3] += 0.02 * turn
	return absf(pole[0]) > 2.4 or absf(pole[2]) > deg_to_rad(12)
