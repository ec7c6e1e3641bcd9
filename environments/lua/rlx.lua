-- A client of an rlx server for one environment: lines of JSON over TCP; see docs/json.md.
local socket, json = require "socket", require "cjson"

-- Connects, sends the hello, and returns a function that sends a message and returns its answer;
-- and the answer to the hello.
--
-- address: HOST:PORT.
-- hello: a table with the keys of that page; of the features hello_ping and ping are handled here.
-- Both raise the server's error, a table with code, message and, sometimes, field and cure; or,
-- when the connection is lost or nothing comes in time, {REASON}.
return function(address, hello)
  local host, port = address:match("^%[?(.-)%]?:(%d+)$")
  local stream = assert(host and socket.tcp(), address .. ": expected HOST:PORT")
  stream:settimeout(60, "t") -- for connecting, and for each answer or ping
  socket.try(stream:connect(host, port))
  stream:setoption("tcp-nodelay", true)
  local function ask(message)
    stream:send(json.encode(message) .. "\n") -- if it fails, so does what follows
    local answer
    repeat
      answer = json.decode((socket.try(stream:receive("*l"))))
    until not answer.ping
    return answer.error and error(answer.error) or answer
  end
  return ask, ask {hello = hello}
end
