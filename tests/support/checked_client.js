// Two counters, played with all that the client in JavaScript can send, for `relaax check-client`.
//
//     node checked_client.js FOLDER_OF_RLX [ws] --rlx-server HOST:PORT --name NAME --token TOKEN
//
// "up" counts up, by "speed"; an episode ends at 3, or is truncated after 9 steps.
"use strict";

const { connect, RlxError } = require(process.argv[2] + "/rlx.js");
const flag = (word) => process.argv[process.argv.indexOf(word) + 1];
const SLOTS = [0, 1];

async function play(client) {
  const counts = SLOTS.map(() => Math.random());
  const steps = SLOTS.map(() => 0);
  const has = (feature) => client.features.includes(feature);
  const observe = () => SLOTS.map((slot) => new Float32Array([counts[slot], steps[slot]]));
  let number = 0;
  let message = { observation: observe() };
  for (;;) {
    if (has("step_id")) message.stepId = ++number;
    const present = SLOTS.map((slot) => slot === 0 || !has("present") || Math.random() < 0.8);
    if (has("present")) message.present = present;
    const action = await client.step(message);
    if (action === null) return;
    const { up, speed } = action;
    SLOTS.filter((slot) => present[slot]).forEach((slot) => {
      counts[slot] += speed[slot] * (up[slot] ? 1 : -0.2);
      steps[slot] += 1;
    });
    const terminated = counts.map((count) => count > 3);
    const truncated = SLOTS.map((slot) => !terminated[slot] && steps[slot] === 9);
    const ended = SLOTS.filter((slot) => terminated[slot] || truncated[slot]);
    message = { terminated, truncated, finalObservation: observe() };
    message.success = SLOTS.map((slot) => (ended.includes(slot) ? terminated[slot] : null));
    message.reward = SLOTS.map((slot) => (present[slot] ? speed[slot] : 0));
    ended.forEach((slot) => {
      counts[slot] = Math.random();
      steps[slot] = 0;
    });
    message.observation = observe();
    if (has("executed")) Object.assign(message, { executed: action, overridden: [false, true] });
    client.scalars([{ name: "count", y: counts[0] }]);
    client.ping();
  }
}

async function main() {
  const client = await connect({
    address: (process.argv[3] === "ws" ? "ws://" : "") + flag("--rlx-server"),
    name: flag("--name"),
    token: flag("--token"),
    slots: SLOTS.length,
    observation: { box: [2] },
    action: { up: { discrete: 2 }, speed: { box: [], low: 0, high: 1 } },
    versions: { counters: "1.0" },
    features: ["executed", "present", "slot_versions", "step_id", "timings"],
    timeoutSec: 4,
    pauseSec: [0.3, 0.6],
    retry: true,
  });
  while (!client.finished) {
    try {
      await play(client);
    } catch (error) {
      if (!(error instanceof RlxError)) throw error;
      await client.reconnect(error);
    }
  }
}

setTimeout(() => process.exit(1), 120000).unref(); // if the process that started it is killed
main().catch((error) => {
  console.error(error.message);
  process.exit(error.code === "UNAUTHENTICATED" ? 2 : 1);
});
