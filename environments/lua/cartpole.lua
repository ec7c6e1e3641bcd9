-- CartPole-v1, with Gymnasium's physics, as a client of an rlx server; see README.md.
local connect, socket = require "rlx", require "socket"
local flags = {["rlx-server"] = "localhost:7001", name = "lua", ["token-file"] = "/dev/null"}

local function stop(status, text)
  (status == 0 and io.stdout or io.stderr):write("lua: ", text, "\n")
  os.exit(status)
end

-- Pushes the cart for 0.02 s, to the left (0) or to the right (1); returns whether the pole fell.
local function push(pole, action)
  local x, x_dot, theta, theta_dot = table.unpack(pole)
  local sine, cosine = math.sin(theta), math.cos(theta)
  local force = ((action == 1 and 10 or -10) + 0.05 * theta_dot ^ 2 * sine) / 1.1
  local turn = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine ^ 2 / 1.1))
  pole[1], pole[2] = x + 0.02 * x_dot, x_dot + 0.02 * (force - 0.05 * turn * cosine / 1.1)
  pole[3], pole[4] = theta + 0.02 * theta_dot, theta_dot + 0.02 * turn
  return math.abs(pole[1]) > 2.4 or math.abs(pole[3]) > math.rad(12)
end

-- Plays episodes until the training has finished.
local function play()
  local hello = {name = flags.name, token = io.lines(flags["token-file"])(),
    observation = {box = {4}}, action = {discrete = 2}, features = {"hello_ping", "ping"}}
  local ask, answer = connect(flags["rlx-server"], hello)
  repeat
    local pole, step, fell = {}, 0, false
    for i = 1, 4 do pole[i] = 0.1 * math.random() - 0.05 end
    answer = ask {act = {observation = pole}}
    while not answer.finished and not fell and step < 500 do
      fell, step = push(pole, answer.action), step + 1
      answer = ask(not fell and step < 500 and {reward_and_act = {reward = 1, observation = pole}}
        or {reward_and_reset = {reward = 1, truncated = not fell, final_observation = pole}})
    end
  until answer.finished
  stop(0, answer.finished)
end

for i = 1, #arg, 2 do
  local flag, value = arg[i]:match("^%-%-(.+)"), arg[i + 1]
  if not (flags[flag] and value) then stop(2, arg[i] .. ": unknown flag, or no value") end
  flags[flag] = value
end
while true do
  local _, why = pcall(play)
  local again = why[1] or (why.code == "UNAVAILABLE" or why.code == "OVERLOADED") and why.message
  if not again then stop(2, why.message or why) end
  print("lua: " .. flags["rlx-server"] .. ": " .. again .. "; retrying")
  socket.sleep(1 + 9 * math.random())
end
