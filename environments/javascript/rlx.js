// A client of an rlx server, for browsers and for Node 18 or newer. One file, no dependencies.
//
//     const client = await rlx.connect({
//       address: "localhost:7001", name: "my game",
//       observation: { box: [4] }, action: { discrete: 2 },
//     });
//     let action = await client.act(observation);
//
// In a browser it speaks WebSocket, in Node lines of JSON over TCP or TLS; always WebSocket if the
// address begins with ws:// or wss://. README.md lists the calls, docs/json.md the messages.
(function () {
  "use strict";

  const isNode = typeof process === "object" && Boolean(process.versions && process.versions.node);
  // Longest text without the end of a line that is accepted from a server.
  const MAX_ANSWER = 1 << 26;
  // Codes after which the same call can succeed later. The last two are our own.
  const RETRY = ["UNAVAILABLE", "OVERLOADED", "LOST", "TIMEOUT"];
  // Longest time that timers of JavaScript can wait.
  const MAX_SEC = 2e6;
  const DEFAULTS = {
    address: "localhost:7001", name: "javascript", mode: "train", token: "", features: [],
    connectTimeoutSec: 10, timeoutSec: 60, retry: false, pauseSec: [1, 10], onLost: () => {},
  };
  // Optional key of a hello -> [its name in JSON, the feature that it needs].
  const HELLO_KEYS = {
    maxWaitMs: ["max_wait_ms", "max_wait"],
    versions: ["versions", "versions"],
    agents: ["agents", "agents"],
    games: ["games", "agents"],
  };
  // Key of a step -> [its name in JSON, what it contains, the feature that it needs].
  const STEP_KEYS = {
    observation: ["observation", "observation"],
    reward: ["reward", "numbers"],
    terminated: ["terminated", "flags"],
    truncated: ["truncated", "flags"],
    success: ["success", "any"],
    finalObservation: ["final_observation", "observation"],
    present: ["present", "flags", "present"],
    executed: ["executed", "action", "executed"],
    overridden: ["overridden", "flags", "executed"],
    mask: ["mask", "flags", "masks"],
    finalMask: ["final_mask", "flags", "masks"],
    stepId: ["step_id", "any", "step_id"],
  };
  // Of each dtype, the typed array with its bytes; float16 and bfloat16 have no such array.
  const ARRAYS = {
    bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, uint8: Uint8Array,
    uint16: Uint16Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
    float32: Float32Array, float64: Float64Array,
  };
  const FLOATS = [Float32Array, Float64Array];

  // What was refused, here or by the server, or went wrong on the way.
  //
  // code: of the server (docs/json.md), or LOST, TIMEOUT, TLS, CLOSED; field: the wrong one, or
  // ""; cure: what to do, or "". The message contains all that is known.
  class RlxError extends Error {
    constructor(code, message, field = "", cure = "") {
      super(cure ? `${message}; ${cure}` : message);
      this.name = "RlxError";
      this.code = code;
      this.field = field;
      this.cure = cure;
    }

    // Whether a reconnection can help.
    get mayRetry() {
      return RETRY.includes(this.code);
    }
  }

  // Values and spaces.

  function refuse(field, what, cure) {
    throw new RlxError("INVALID_FIELD", `${field}: ${what}`, field, cure);
  }

  // Whether spaces have names: { camera: {...}, speed: {...} }.
  function areNamed(spaces) {
    const values = Object.values(spaces);
    return values.length > 0 && values.every((one) => isObject(one));
  }

  function isObject(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value)
      && !ArrayBuffer.isView(value);
  }

  function findDtype(space) {
    return space.dtype || ("box" in space ? "float32" : "multi_binary" in space ? "int8" : "int64");
  }

  // Checks numbers in nested lists; true and false become numbers, or the reverse. Masks can have
  // names.
  function encodeNumbers(value, isBool, field) {
    if (Array.isArray(value)) return value.map((one) => encodeNumbers(one, isBool, field));
    if (ArrayBuffer.isView(value)) return encodeNumbers(Array.from(value), isBool, field);
    if (isBool && isObject(value)) return Object.fromEntries(
      Object.entries(value).map(([k, one]) => [k, encodeNumbers(one, true, `${field}.${k}`)]));
    const isNumber = typeof value === "number" && Number.isFinite(value);
    if (!isNumber && typeof value !== "boolean") {
      const text = String(value).slice(0, 40);
      refuse(field, `${text}, expected finite numbers`, "check the simulator");
    }
    return isBool ? Boolean(value) : Number(value);
  }

  function mapNested(value, change) {
    return Array.isArray(value) ? value.map((one) => mapNested(one, change)) : change(value);
  }

  function encodeBytes(arrays, dtype, field) {
    const Kind = ARRAYS[dtype];
    if (Kind === undefined) {
      refuse(field, `a typed array for dtype ${dtype}`, "send nested lists of numbers");
    }
    const parts = arrays.map((array) => {
      const isFloat = FLOATS.includes(Kind);
      const fits = array instanceof Kind || (isFloat && FLOATS.includes(array.constructor))
        || (Kind === Uint8Array && array instanceof Uint8ClampedArray);
      if (!fits) {
        const name = array.constructor.name;
        refuse(field, `${name}, expected ${Kind.name} for dtype ${dtype}`, "convert it");
      }
      if (isFloat && !array.every(Number.isFinite)) {
        refuse(field, "NaN or infinity, expected finite numbers", "check the simulator");
      }
      const same = array instanceof Kind ? array : Kind.from(array);
      return new Uint8Array(same.buffer, same.byteOffset, same.byteLength);
    });
    const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at);
      at += part.length;
    }
    return { base64: isNode ? Buffer.from(bytes.buffer).toString("base64") : toBase64(bytes) };
  }

  function toBase64(bytes) {
    let text = "";
    for (let at = 0; at < bytes.length; at += 0x8000) {
      text += String.fromCharCode.apply(null, bytes.subarray(at, at + 0x8000));
    }
    return btoa(text);
  }

  // One leaf: numbers in nested lists, a typed array, or a list of these, one for each slot.
  function encodeLeaf(value, space, field) {
    const dtype = findDtype(space);
    const first = Array.isArray(value) ? value[0] : value;
    if (ArrayBuffer.isView(first)) {
      return encodeBytes(Array.isArray(value) ? value : [value], dtype, field);
    }
    let number = first;
    while (Array.isArray(number)) number = number[0];
    if (typeof number === "bigint") return { integers: mapNested(value, String) };
    return encodeNumbers(value, dtype === "bool", field);
  }

  function encodeLeaves(value, spaces, field) {
    if (!areNamed(spaces)) return encodeLeaf(value, spaces, field);
    const names = Object.keys(spaces);
    const given = isObject(value) ? Object.keys(value) : [];
    if (names.length !== given.length || names.some((name) => !given.includes(name))) {
      refuse(field, `the names ${given.join(", ") || "(none)"}`, `send ${names.join(", ")}`);
    }
    return Object.fromEntries(
      names.map((name) => [name, encodeLeaf(value[name], spaces[name], `${field}.${name}`)]));
  }

  function decodeLeaves(value, spaces) {
    const decode = (leaf) => (isObject(leaf) ? mapNested(leaf.integers, BigInt) : leaf);
    if (!areNamed(spaces)) return decode(value);
    return Object.fromEntries(Object.keys(spaces).map((name) => [name, decode(value[name])]));
  }

  // Connections: `on` has open(), text(line), end(code, why).

  function openWebSocket(url, on) {
    if (typeof WebSocket === "undefined") {
      const cure = "use HOST:PORT, or Node 22 or newer";
      refuse("address", `${url}, but this Node has no WebSocket`, cure);
    }
    const socket = new WebSocket(url);
    let isOpen = false;
    socket.onopen = () => {
      isOpen = true;
      on.open();
    };
    socket.onmessage = (event) => on.text(event.data);
    socket.onclose = () => {
      const origin = typeof location === "object" ? location.origin : "of this program";
      on.end("LOST", isOpen ? "the server closed the connection" : "cannot open a WebSocket; is "
        + `the server running, and does its relaax-rlx-server.allowed_origins list ${origin}?`);
    };
    return { send: (text) => socket.send(text), close: () => socket.close() };
  }

  function openSocket(host, port, tls, on) {
    const socket = tls
      ? require("node:tls").connect({ host, port, ...(tls === true ? {} : tls) })
      : require("node:net").connect({ host, port });
    let rest = "";
    // Without it each small message could wait for 40 ms.
    socket.setNoDelay(true);
    socket.setKeepAlive(true, 30000);
    socket.setEncoding("utf8");
    socket.on(tls ? "secureConnect" : "connect", on.open);
    socket.on("data", (text) => {
      let start = 0;
      for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
        const line = rest + text.slice(start, end);
        rest = "";
        start = end + 1;
        on.text(line);
      }
      rest += text.slice(start);
      if (rest.length > MAX_ANSWER) {
        on.end("MALFORMED", "received a line that is too long; is it an rlx server?");
      }
    });
    socket.on("error", (error) => {
      // Errors of certificates do not have a number of the operating system.
      const isTls = Boolean(tls) && (error.errno === undefined || error.code === "EPROTO");
      on.end(isTls ? "TLS" : "LOST", `${error.message}; is this the address of a running server?`);
    });
    socket.on("close", () => on.end("LOST", "the server closed the connection"));
    return { send: (text) => socket.write(text + "\n"), close: () => socket.destroy() };
  }

  function openConnection(options, on) {
    const { address, tls } = options;
    if (/^wss?:\/\//.test(address)) return openWebSocket(address, on);
    const found = /^(?:\[([0-9a-fA-F:.]+)\]|([^:/\[\]\s]+)):(\d{1,5})$/.exec(address);
    if (found === null || Number(found[3]) < 1 || Number(found[3]) > 65535) {
      refuse("address", String(address).slice(0, 100), "use HOST:PORT, [IPV6]:PORT, or ws://...");
    }
    return isNode
      ? openSocket(found[1] || found[2], Number(found[3]), tls, on)
      : openWebSocket(`${tls ? "wss" : "ws"}://${address}/`, on);
  }

  function checkOptions(options) {
    const checked = { ...DEFAULTS, ...options };
    const known = Object.keys({ ...DEFAULTS, ...HELLO_KEYS });
    known.push("observation", "action", "slots", "tls", "signal");
    const wrong = Object.keys(checked).find((key) => !known.includes(key));
    if (wrong !== undefined) refuse(wrong, "unknown option", `use ${known.join(", ")}`);
    for (const key of ["observation", "action"]) {
      if (!isObject(checked[key])) {
        refuse(key, "no space", "for example { box: [4] } or { discrete: 2 }");
      }
    }
    for (const sec of [checked.connectTimeoutSec, checked.timeoutSec, ...checked.pauseSec]) {
      if (!(sec >= 0 && sec <= MAX_SEC)) {
        refuse("timeoutSec", `a time of ${sec} s`, `use 0 to ${MAX_SEC}`);
      }
    }
    return checked;
  }

  // A connection to a server, and the agents behind it. Made by `connect`.
  //
  // finished: why training has ended, or "": it has not; version: of the weights that chose the
  // last action; episodes: { slot, score, length } of those that the last step ended; timings,
  // slotVersions: of the last answer, with these features; session, features, maxMessageBytes: of
  // this connection.
  class Client {
    #options;
    #connection = null;
    #waiting = null;
    #error = null; // of the connection
    #isClosed = false;

    constructor(options) {
      this.#options = checkOptions(options);
      this.finished = "";
      this.features = [];
      this.episodes = [];
    }

    // First action of an episode, or of all slots. null: training has finished.
    act(observation, more = {}) {
      return this.step({ observation, ...more });
    }

    // Reports the reward of the last action; returns the next one. null: training has finished.
    rewardAndAct(reward, observation, more = {}) {
      return this.step({ reward, observation, ...more });
    }

    // Reports the last reward of an episode; returns its score. null: training has finished.
    async rewardAndReset(reward, more = {}) {
      await this.step({ reward, ...more });
      return this.episodes.length ? this.episodes[0].score : null;
    }

    // One message of any kind: the keys are those of STEP_KEYS. Returns the action, of all slots
    // if there are several; null: every slot has ended, or training has finished.
    async step(message) {
      if (this.finished) return null;
      const fields = this.#encode(message);
      const verb = !("reward" in fields) ? "act"
        : "observation" in fields ? "reward_and_act" : "reward_and_reset";
      const answer = await this.#ask({ [verb]: fields });
      this.finished = answer.finished || "";
      this.episodes = answer.episodes || [];
      this.version = answer.version;
      this.timings = answer.timings;
      this.slotVersions = answer.versions;
      if (this.finished) {
        this.#drop();
        return null;
      }
      if (answer.action === undefined) {
        if (verb === "reward_and_reset") return null;
        this.#end("MALFORMED", "received an answer without an action");
        throw this.#error;
      }
      return decodeLeaves(answer.action, this.#options.action);
    }

    // Sends points of curves, [{ name, y, x }]. There is no answer.
    scalars(points) {
      this.#send(JSON.stringify({ scalars: points }));
    }

    // Tells the server that a slow simulator is alive, if that feature is on.
    ping() {
      if (this.features.includes("ping")) this.#send('{"ping":{}}');
    }

    // Connects again after a random pause, until it succeeds; then reset the environment and
    // `act`. Throws the error if a reconnection is not allowed or cannot help.
    async reconnect(error) {
      const [least, most] = this.#options.pauseSec;
      while (error.mayRetry && !this.finished && !this.#isClosed) {
        const sec = least + Math.random() * (most - least);
        this.#drop();
        this.#error = null;
        this.#options.onLost(error, sec);
        await this.#wait(sec, () => this.#settle());
        try {
          return await this.open();
        } catch (next) {
          error = next;
        }
      }
      throw error;
    }

    // Ends the connection; whatever waits for an answer gets an error with the code CLOSED.
    close() {
      this.#isClosed = true;
      this.#fail(new RlxError("CLOSED", "this client was closed"));
    }

    // For `connect`: opens a connection and sends the hello.
    async open() {
      const { address, connectTimeoutSec } = this.#options;
      this.#drop();
      this.#error = null;
      const on = (call) => (...args) => connection === this.#connection && call(...args);
      const connection = {};
      this.#connection = connection;
      const calls = {
        open: on(() => this.#settle()),
        text: on((text) => this.#receive(text)),
        end: on((code, why) => this.#end(code, why)),
      };
      try {
        Object.assign(connection, openConnection(this.#options, calls));
      } catch (error) { // a wrong URL, or a certificate that cannot be read
        if (error instanceof RlxError) throw error;
        throw new RlxError("TLS", `${address}: ${error.message}`);
      }
      await this.#wait(connectTimeoutSec);
      await this.#greet();
    }

    async #greet() {
      const { name, observation, action, slots, mode, token } = this.#options;
      const hello = { name, observation, action, slots, mode };
      const features = new Set(["hello_ping", "ping", ...this.#options.features]);
      if (token) hello.token = token;
      const given = (key) => this.#options[key] !== undefined;
      const optional = Object.keys(HELLO_KEYS).filter(given);
      for (const key of optional) {
        const [spelled, feature] = HELLO_KEYS[key];
        hello[spelled] = this.#options[key];
        features.add(feature);
      }
      hello.features = [...features].sort();
      const { ready } = await this.#ask({ hello });
      if (!isObject(ready) || !Array.isArray(ready.features)) {
        this.#end("MALFORMED", "received another answer to the hello than ready");
        throw this.#error;
      }
      this.session = ready.session;
      this.features = ready.features;
      this.maxMessageBytes = ready.max_message_bytes;
      try {
        for (const key of optional.filter((one) => one !== "versions")) {
          this.#require(HELLO_KEYS[key][1], key);
        }
      } catch (error) {
        this.#drop();
        throw error;
      }
    }

    #require(feature, key) {
      if (!this.features.includes(feature)) {
        const cure = this.#options.features.includes(feature) || key in HELLO_KEYS
          ? (feature === "masks" ? "begin a run with masks" : "leave it out: it is not supported")
          : `list "${feature}" in the option features`;
        refuse(key, `the feature ${feature} is off`, cure);
      }
    }

    #encode(message) {
      const fields = {};
      const given = Object.entries(message).filter(([, value]) => value !== undefined);
      for (const [key, value] of given) {
        if (!(key in STEP_KEYS)) {
          refuse(key, "unknown key of a step", `use ${Object.keys(STEP_KEYS).join(", ")}`);
        }
        const [name, kind, feature] = STEP_KEYS[key];
        if (feature) this.#require(feature, key);
        if (kind === "observation" || kind === "action") {
          fields[name] = encodeLeaves(value, this.#options[kind], key);
        } else {
          fields[name] = kind === "any" ? value : encodeNumbers(value, kind === "flags", key);
        }
      }
      return fields;
    }

    #ask(message) {
      const text = JSON.stringify(message);
      const most = message.hello ? Infinity : this.maxMessageBytes;
      if (text.length > most) {
        refuse("step", `${text.length} characters, expected at most ${most}`, "use fewer slots");
      }
      this.#send(text);
      return this.#wait(this.#options.timeoutSec);
    }

    #send(text) {
      if (this.#error !== null) throw this.#error;
      if (this.#connection === null) throw new RlxError("CLOSED", "there is no connection");
      if (this.#waiting !== null && text !== '{"ping":{}}') {
        throw new RlxError("OUT_OF_ORDER", "the last call has no answer yet; await it first");
      }
      this.#connection.send(text);
    }

    // The only place that waits: for an opened connection, an answer, or the end of a pause.
    #wait(sec, onTime = () => this.#end("TIMEOUT", `no answer within ${sec} s`)) {
      return new Promise((resolve, reject) => {
        const start = () => setTimeout(onTime, sec * 1000);
        this.#waiting = { resolve, reject, start, timer: start() };
        if (this.#error !== null) this.#fail(this.#error);
      });
    }

    #settle(value) {
      const { resolve, timer } = this.#waiting;
      this.#waiting = null;
      clearTimeout(timer);
      resolve(value);
    }

    #receive(text) {
      let message;
      try {
        message = JSON.parse(text);
      } catch {
        message = null;
      }
      if (!isObject(message)) {
        this.#end("MALFORMED", "received something that is not JSON; is it an rlx server, and do "
          + "both ends use TLS, or neither?");
      } else if (message.error) {
        const { code, message: what, field, cure } = message.error;
        this.#fail(new RlxError(code, what, field, cure));
      } else if (message.ping) {
        if (this.#waiting !== null) {
          clearTimeout(this.#waiting.timer);
          this.#waiting.timer = this.#waiting.start();
        }
      } else if (this.#waiting !== null) {
        this.#settle(message);
      } else {
        this.#end("MALFORMED", "received an answer to nothing");
      }
    }

    #end(code, why) {
      this.#fail(new RlxError(code, `${this.#options.address}: ${why}`));
    }

    #fail(error) {
      const waiting = this.#waiting;
      this.#drop();
      this.#error = error;
      this.#waiting = null;
      if (waiting !== null) {
        clearTimeout(waiting.timer);
        waiting.reject(error);
      }
    }

    #drop() {
      const connection = this.#connection;
      this.#connection = null;
      if (connection !== null && connection.close) connection.close();
    }
  }

  // Connects and sends the hello; returns the client. README.md lists the options.
  //
  // Throws an RlxError; with `retry: true` it tries again, after a random pause, while that can
  // help.
  async function connect(options) {
    const client = new Client(options);
    if (options.signal) options.signal.addEventListener("abort", () => client.close());
    try {
      await client.open();
    } catch (error) {
      if (!(options.retry && error.mayRetry)) throw error;
      await client.reconnect(error);
    }
    return client;
  }

  if (typeof module === "object" && module.exports) {
    module.exports = { connect, RlxError };
  } else {
    globalThis.rlx = { connect, RlxError };
  }
})();
