-- Makes the calls of a test with the client in Lua; see support/drivers.py.
--
--     lua5.4 driver.lua RLX_LUA ADDRESS      calls come as lines on standard input
local json = require "cjson"
-- A limit of time as short as in the other drivers.
local source, count = io.open(arg[1]):read("a"):gsub("settimeout%(60", "settimeout(4")
assert(count == 1)
local connect, ask = load(source)()

local function call(message)
  if not message.hello then return ask(message) end
  local answer
  ask, answer = connect(arg[2], message.hello)
  return answer
end

for line in io.lines() do
  local worked, answer = pcall(call, json.decode(line))
  if not worked then
    answer = {error = answer.code and answer or {code = "LOST", message = tostring(answer[1])}}
  end
  print(json.encode(answer))
  io.flush()
end
