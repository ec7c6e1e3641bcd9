// Makes the calls of a test with the client in JavaScript; see support/drivers.py.
//
//     node driver.js FOLDER_OF_RLX ADDRESS CA      calls come as lines on standard input
//
// In a page, `call(message, address, ca)` makes one.
"use strict";

const isNode = typeof process === "object";
const { connect, RlxError } = isNode ? require(process.argv[2] + "/rlx.js") : globalThis.rlx;
let client = null;

function toOptions({ max_wait_ms: maxWaitMs, protocol_version: unused, ...hello }) {
  return maxWaitMs === undefined ? hello : { ...hello, maxWaitMs };
}

function toStep(message) {
  const { final_observation: finalObservation, final_mask: finalMask, ...rest } = message;
  const { step_id: stepId, ...step } = rest;
  if (finalObservation) step.finalObservation = finalObservation;
  if (finalMask) step.finalMask = finalMask;
  return stepId ? { ...step, stepId } : step;
}

async function makeCall([kind, content], address, ca) {
  if (kind === "hello") {
    const tls = isNode && ca ? { ca: require("node:fs").readFileSync(ca) } : Boolean(ca);
    client = await connect({ ...toOptions(content), address, tls, timeoutSec: 4 });
    return { ready: { features: client.features } };
  }
  if (kind === "ping") return client.ping();
  if (kind === "scalars") return client.scalars(content);
  const action = await client.step(toStep(content));
  const { episodes, version, finished } = client;
  return { ...(action !== null && { action }), episodes, version, ...(finished && { finished }) };
}

// Returns the answer to a message; null: it has none.
globalThis.call = async (message, address, ca) => {
  try {
    return (await makeCall(Object.entries(message)[0], address, ca)) || null;
  } catch (error) {
    if (!(error instanceof RlxError)) throw error;
    return { error: { code: error.code, field: error.field, message: error.message } };
  }
};

async function main() {
  for await (const line of require("node:readline").createInterface({ input: process.stdin })) {
    const answer = await globalThis.call(JSON.parse(line), ...process.argv.slice(3));
    if (answer !== null) process.stdout.write(JSON.stringify(answer) + "\n");
  }
  process.exit(0);
}

if (isNode) main();
