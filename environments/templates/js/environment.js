// __NAME__: an environment that asks an rlx server for its actions.
"use strict";

const fs = require("node:fs");
const { connect, RlxError } = require("./rlx.js");

const OBSERVATION = __OBSERVATION__;
const ACTION = __ACTION__;

// Replace this by your own: now observations are random, and an episode has 20 steps.
class Environment {
  // Begins an episode; returns its first observation.
  reset() {
    this.steps = 0;
    return sample(OBSERVATION);
  }

  // Does an action.
  step(action) {
    this.steps += 1;
    const truncated = this.steps === 20; // cut off, as by a time limit
    return { observation: sample(OBSERVATION), reward: 1, terminated: false, truncated };
  }
}

// Returns a random value of a space.
function sample(space) {
  const draw = (n) => Math.floor(Math.random() * n);
  if (Number.isInteger(space.discrete)) return (space.start || 0) + draw(space.discrete);
  if (Array.isArray(space.multi_discrete)) {
    const left = [...space.multi_discrete];
    return fill(space.shape || [left.length], () => draw(left.shift()));
  }
  if (Array.isArray(space.multi_binary)) return fill(space.multi_binary, () => draw(2));
  if (Array.isArray(space.box)) {
    const isFloat = (space.dtype || "float32").includes("float");
    return fill(space.box, () => (isFloat ? Math.random() : draw(2)));
  }
  return Object.fromEntries(Object.entries(space).map(([name, leaf]) => [name, sample(leaf)]));
}

// Returns nested lists of this shape.
function fill([length, ...rest], draw) {
  return length === undefined ? draw() : Array.from({ length }, () => fill(rest, draw));
}

// Plays until the training has finished, or the connection is lost.
async function play(client, environment) {
  while (!client.finished) {
    let action = await client.act(environment.reset());
    while (action !== null) { // null: the training has finished
      const { observation, reward, terminated, truncated } = environment.step(action);
      if (terminated || truncated) {
        await client.rewardAndReset(
          reward, { truncated: truncated && !terminated, finalObservation: observation });
        break;
      }
      action = await client.rewardAndAct(reward, observation);
    }
  }
}

const TLS = { "--tls-ca": "ca", "--tls-cert": "cert", "--tls-key": "key" };

function parse(words) {
  const options = {
    address: "localhost:7001", name: "__NAME__", observation: OBSERVATION, action: ACTION,
    token: process.env.RELAAX_TOKEN || "", retry: true,
    onLost: (error, sec) => console.log(`${error.message}; retrying in ${sec.toFixed(1)} s`),
  };
  for (let i = 0; i < words.length; i += 2) {
    const [flag, value] = words.slice(i, i + 2);
    if (value === undefined) throw new RlxError("USAGE", `${flag}: expected a value after it`);
    if (flag === "--rlx-server") options.address = value;
    else if (flag === "--name") options.name = value;
    else if (flag === "--token-file") options.token = fs.readFileSync(value, "utf8").trim();
    else if (TLS[flag]) options.tls = { ...options.tls, [TLS[flag]]: fs.readFileSync(value) };
    else {
      const flags = ["--rlx-server", "--name", "--token-file", ...Object.keys(TLS)];
      throw new RlxError("USAGE", `${flag}: expected one of ${flags.join(", ")}`);
    }
  }
  return options;
}

async function main() {
  const client = await connect(parse(process.argv.slice(2)));
  const environment = new Environment();
  while (!client.finished) {
    try {
      await play(client, environment);
    } catch (error) {
      if (!(error instanceof RlxError)) throw error;
      await client.reconnect(error); // throws it again if that cannot help
    }
  }
  console.log(`__NAME__: ${client.finished}`);
}

main().catch((error) => {
  const isKnown = error instanceof RlxError || error.syscall; // such as a file that is missing
  console.error(isKnown ? `__NAME__: ${error.message}` : error);
  process.exit(error.code === "AGENT_FAILED" ? 1 : 2);
});
