# CartPole-v1 with Gymnasium's physics, as a client of an rlx server; see README.md.
extends SceneTree

const MAX_STEPS = 500

# x, its speed, the angle, its speed.
var pole = [0.0, 0.0, 0.0, 0.0]
var flags = {"--rlx-server": ["localhost:7001"], "--name": ["godot3"], "--token-file": [""],
	"--retry-sleep": ["1", "10"]}
var begun = false
var ended = false


# An error of a script ends a function, not the program: then this is called again.
func _idle(_delta):
	if begun and not ended:
		quit(1)
	elif not begun:
		begun = true
		call_deferred("run")
	return ended


func stop(status, text):
	if status == 0:
		print(text)
	else:
		printerr("godot3: " + text)
	ended = true
	quit(status)


func run():
	randomize()
	var mistake = parse(OS.get_environment("RELAAX_ARGUMENTS").split("\n"))
	var hello = {"name": flags["--name"][0], "observation": {"box": [4]}, "action": {"discrete": 2}}
	var file = File.new()
	var path = flags["--token-file"][0]
	if path:
		# Godot's own working directory is the project.
		path = OS.get_environment("PWD").plus_file(path) if path.is_rel_path() else path
		if file.open(path, File.READ) == OK:
			hello["token"] = file.get_line()
		else:
			mistake = path + ": cannot be read"
	if mistake:
		return stop(2, mistake)
	var client = load(get_script().resource_path.get_base_dir() + "/rlx.gd").new()
	while true:
		if client.open(flags["--rlx-server"][0], hello):
			play(client)
		if client.finished:
			return stop(0, "godot3: " + client.finished)
		if not client.can_retry():
			return stop(1 if client.error["code"] == "AGENT_FAILED" else 2, client.error["message"])
		var limits = flags["--retry-sleep"]
		var pause = rand_range(float(limits[0]), float(limits[1]))
		print("godot3: %s; retrying in %.1f s" % [client.error["message"], pause])
		OS.delay_usec(int(1e6 * pause))


# Reads the command line; returns what is wrong with it.
func parse(arguments):
	var i = 0
	while i < arguments.size() and arguments[i]:
		var flag = arguments[i]
		if not flag in flags:
			return flag + ": unknown; README.md lists the flags"
		var count = flags[flag].size()
		if i + count >= arguments.size() or not arguments[i + count]:
			return flag + ": expected a value after it"
		for j in range(count):
			flags[flag][j] = arguments[i + 1 + j]
		i += 1 + count
	return ""


# Plays episodes until the training has finished, or the connection is lost.
func play(client):
	while true:
		for i in range(4):
			pole[i] = rand_range(-0.05, 0.05)
		var answer = client.ask({"act": {"observation": pole}})
		var fell = false
		var steps = 0
		while answer != null and not client.finished and not fell and steps < MAX_STEPS:
			fell = push(int(answer["action"]))
			steps += 1
			var message = {"reward_and_act": {"reward": 1, "observation": pole}}
			if fell or steps == MAX_STEPS:
				message = {"reward_and_reset": {
					"reward": 1, "truncated": not fell, "final_observation": pole}}
			answer = client.ask(message)
		if answer == null or client.finished:
			return


# Pushes the cart for 0.02 s, to the left (0) or to the right (1); returns whether the pole fell.
func push(action):
	var sine = sin(pole[2])
	var cosine = cos(pole[2])
	var force = ((10.0 if action == 1 else -10.0) + 0.05 * pole[3] * pole[3] * sine) / 1.1
	var inertia = 0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1)
	var turn = (9.8 * sine - cosine * force) / inertia
	pole[0] += 0.02 * pole[1]
	pole[1] += 0.02 * (force - 0.05 * turn * cosine / 1.1)
	pole[2] += 0.02 * pole[3]
	pole[3] += 0.02 * turn
	return abs(pole[0]) > 2.4 or abs(pole[2]) > deg2rad(12)
