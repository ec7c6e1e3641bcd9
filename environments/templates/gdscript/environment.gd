# __NAME__: an environment that asks an rlx server for its actions.
extends SceneTree

const OBSERVATION = __OBSERVATION__
const ACTION = __ACTION__

var flags = {"--rlx-server": "localhost:7001", "--name": "__NAME__", "--token-file": ""}
var begun = false
var ended = false


# Replace this by your own: now observations are random, and an episode has 20 steps.
class Simulator:
	var main
	var steps = 0

	# Begins an episode; returns its first observation.
	func reset():
		steps = 0
		return main.sample(OBSERVATION)

	# Does an action, whose numbers are all floats; returns observation, reward, terminated, and
	# truncated: whether the episode is cut off, as by a time limit.
	func step(_action):
		steps += 1
		return [main.sample(OBSERVATION), 1.0, false, steps == 20]


# Returns a random value of a space.
func sample(space):
	if typeof(space.get("discrete")) == TYPE_INT:
		return space.get("start", 0) + randi() % space["discrete"]
	if typeof(space.get("multi_discrete")) == TYPE_ARRAY:
		var most = space["multi_discrete"].duplicate()
		return fill(space.get("shape", [most.size()]), "int64", most)
	if typeof(space.get("multi_binary")) == TYPE_ARRAY:
		return fill(space["multi_binary"], space.get("dtype", "int8"), [])
	if typeof(space.get("box")) == TYPE_ARRAY:
		return fill(space["box"], space.get("dtype", "float32"), [])
	var leaves = {}
	for name in space:
		leaves[name] = sample(space[name])
	return leaves


# Returns nested lists of this shape. most: the choices of each integer; empty: two.
func fill(shape, dtype, most):
	if not shape:
		if "float" in dtype:
			return randf()
		var number = randi() % (most.pop_front() if most else 2)
		return number == 1 if dtype == "bool" else number
	var list = []
	for _i in range(shape[0]):
		list.append(fill(shape.slice(1, shape.size() - 1) if shape.size() > 1 else [], dtype, most))
	return list


# Plays until the training has finished, or the connection is lost.
func play(client, simulator):
	while true:
		var answer = client.ask({"act": {"observation": simulator.reset()}})
		while answer != null and "action" in answer:
			var next = simulator.step(answer["action"])
			var message = {"reward_and_act": {"reward": next[1], "observation": next[0]}}
			if next[2] or next[3]:
				message = {"reward_and_reset": {
					"reward": next[1], "truncated": not next[2], "final_observation": next[0]}}
			answer = client.ask(message)
		if answer == null or client.finished:
			return


func run():
	randomize()
	var mistake = parse(OS.get_environment("RELAAX_ARGUMENTS").split("\n"))
	var hello = {"name": flags["--name"], "observation": OBSERVATION, "action": ACTION}
	var token = OS.get_environment("RELAAX_TOKEN")
	var file = File.new()
	var path = flags["--token-file"]
	if path:
		# Godot's own working directory is the project.
		path = OS.get_environment("PWD").plus_file(path) if path.is_rel_path() else path
		if file.open(path, File.READ) == OK:
			token = file.get_line()
		else:
			mistake = path + ": cannot be read"
	if mistake:
		return stop(2, mistake)
	if token:
		hello["token"] = token
	var client = load(get_script().resource_path.get_base_dir() + "/rlx.gd").new()
	var simulator = Simulator.new()
	simulator.main = self
	while true:
		if client.open(flags["--rlx-server"], hello):
			play(client, simulator)
		if client.finished:
			return stop(0, "__NAME__: " + client.finished)
		if not client.can_retry():
			return stop(1 if client.error["code"] == "AGENT_FAILED" else 2, client.error["message"])
		var pause = rand_range(1, 10)
		print("__NAME__: %s; retrying in %.1f s" % [client.error["message"], pause])
		OS.delay_usec(int(1e6 * pause))


# Reads the command line; returns what is wrong with it.
func parse(arguments):
	for i in range(0, arguments.size(), 2):
		if not arguments[i]:
			break
		if not arguments[i] in flags:
			return arguments[i] + ": expected " + PoolStringArray(flags.keys()).join(", ")
		if i + 1 == arguments.size() or not arguments[i + 1]:
			return arguments[i] + ": expected a value after it"
		flags[arguments[i]] = arguments[i + 1]
	return ""


func stop(status, text):
	if status == 0:
		print(text)
	else:
		printerr("__NAME__: " + text)
	ended = true
	quit(status)


# An error of a script ends a function, not the program: then this is called again.
func _idle(_delta):
	if begun and not ended:
		quit(1)
	elif not begun:
		begun = true
		call_deferred("run")
	return ended
