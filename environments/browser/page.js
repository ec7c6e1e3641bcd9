// CartPole that learns, drawn while it plays. The answers of the server drive it, so it plays as
// fast as they arrive, also while the page is hidden. Only drawing waits for the screen.
"use strict";

const { connect, RlxError } = globalThis.rlx;
const { CartPoles, SPACES, MAX_X } = globalThis.cartpole;
const INK = "#1f2933";
const QUIET = "#61707f";
const LINE = "#d5dce3";
const DOT = "#8fa3b5";
const MARK = "#0b6bcb";
const GOAL = 475; // mean of 100 episodes at which CartPole-v1 counts as solved
const MOST_POINTS = 1000; // of the curve
const MOST_SCORE = 500;
const find = (id) => document.getElementById(id);

// All that is shown; tests read it, too.
const shown = {
  status: "", steps: 0, episodes: 0, mean: 0, version: 0, frames: 0, solvedSec: null,
};
globalThis.shown = shown;

// The last 100 scores, and points of the curve, one for every `stride` episodes.
const scores = [];
const points = [];
let stride = 1;

function addScore(score) {
  scores.push(score);
  if (scores.length > 100) scores.shift();
  shown.episodes += 1;
  shown.mean = scores.reduce((sum, one) => sum + one, 0) / scores.length;
  if (shown.solvedSec === null && scores.length === 100 && shown.mean >= GOAL) {
    shown.solvedSec = performance.now() / 1000;
  }
  if (shown.episodes % stride === 0) points.push({ steps: shown.steps, score, mean: shown.mean });
  if (points.length > MOST_POINTS) {
    points.splice(0, points.length, ...points.filter((_, number) => number % 2));
    stride *= 2;
  }
}

// Playing.

let settings = null;
let poles = null;
let stopping = null; // an AbortController while it plays

async function play(client) {
  let message = poles.reset();
  for (;;) {
    const actions = await client.step(message);
    for (const episode of client.episodes) addScore(episode.score);
    if (actions === null) return;
    shown.version = client.version;
    shown.steps += actions.length;
    message = poles.step(actions);
  }
}

async function connectAndPlay() {
  const { address, tls, name, slots } = settings;
  const options = {
    ...SPACES, address, tls, name, slots, token: find("token").value, retry: true,
    signal: stopping.signal,
    onLost: (error, sec) => {
      shown.status = `${error.message}; next attempt in ${sec.toFixed(0)} s`;
    },
  };
  shown.status = `connecting to ${address}`;
  const client = await connect(options);
  while (!client.finished) {
    shown.status = `playing at ${address}`;
    try {
      await play(client);
    } catch (error) {
      if (!(error instanceof RlxError)) throw error;
      await client.reconnect(error);
    }
  }
  shown.status = `finished: ${client.finished}`;
}

async function start() {
  stopping = new AbortController();
  try {
    await connectAndPlay();
  } catch (error) {
    shown.status = error.code === "CLOSED" ? "stopped" : error.message;
    if (error.code === "UNAUTHENTICATED") find("token").hidden = false;
  }
  stopping = null;
}

// Drawing.

function drawPole(pen, left, top, width, height, [x, , theta]) {
  const ground = top + 0.8 * height;
  const center = left + width * (0.5 + (0.42 * x) / MAX_X);
  const length = 0.5 * height;
  pen.strokeStyle = LINE;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(left + 0.05 * width, ground);
  pen.lineTo(left + 0.95 * width, ground);
  pen.stroke();
  pen.fillStyle = INK;
  pen.fillRect(center - 0.09 * width, ground - 0.06 * height, 0.18 * width, 0.12 * height);
  pen.strokeStyle = MARK;
  pen.lineWidth = 0.03 * width;
  pen.lineCap = "round";
  pen.beginPath();
  pen.moveTo(center, ground);
  pen.lineTo(center + length * Math.sin(theta), ground - length * Math.cos(theta));
  pen.stroke();
}

function drawPoles() {
  const canvas = find("poles");
  const pen = canvas.getContext("2d");
  const columns = Math.min(poles.states.length, Math.max(4, Math.ceil(poles.states.length / 4)));
  const rows = Math.ceil(poles.states.length / columns);
  const [width, height] = [canvas.width / columns, canvas.height / rows];
  pen.clearRect(0, 0, canvas.width, canvas.height);
  poles.states.forEach((state, slot) => {
    const [row, column] = [Math.floor(slot / columns), slot % columns];
    if (state !== null) drawPole(pen, column * width, row * height, width, height, state);
  });
}

function drawCurve() {
  const canvas = find("curve");
  const pen = canvas.getContext("2d");
  const [left, top, right, bottom] = [50, 15, canvas.width - 15, canvas.height - 30];
  const most = Math.max(1, shown.steps);
  const across = (steps) => left + ((right - left) * steps) / most;
  const up = (score) => bottom - ((bottom - top) * score) / MOST_SCORE;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.font = "13px system-ui, sans-serif";
  pen.fillStyle = QUIET;
  pen.strokeStyle = LINE;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  for (const score of [0, 100, 200, 300, 400, 500]) {
    pen.fillText(score, left - 8, up(score) + 4);
    pen.strokeRect(left, up(score), right - left, 0);
  }
  pen.fillText(`${shown.steps.toLocaleString("en")} steps`, right, bottom + 20);
  pen.textAlign = "left";
  pen.fillText("score of an episode (dots), mean of the last 100 (line)", left, bottom + 20);
  pen.fillStyle = DOT;
  for (const { steps, score } of points) pen.fillRect(across(steps) - 1.5, up(score) - 1.5, 3, 3);
  pen.strokeStyle = MARK;
  pen.lineWidth = 3;
  pen.beginPath();
  for (const { steps, mean } of points) pen.lineTo(across(steps), up(mean));
  pen.stroke();
}

const rate = { steps: 0, at: performance.now() };

let drawn = -1; // episodes in the curve

function draw() {
  shown.frames += 1;
  drawPoles();
  if (drawn !== shown.episodes) drawCurve();
  drawn = shown.episodes;
  const ms = performance.now() - rate.at;
  if (ms >= 1000) {
    find("rate").textContent = Math.round(((shown.steps - rate.steps) / ms) * 1000);
    Object.assign(rate, { steps: shown.steps, at: performance.now() });
  }
  const solved = shown.solvedSec === null ? ""
    : `; solved ${shown.solvedSec.toFixed(0)} s after the page was loaded`;
  find("status").textContent = shown.status + solved;
  find("button").textContent = stopping === null ? "Start" : "Stop";
  find("mean").textContent = scores.length ? shown.mean.toFixed(1) : "-";
  for (const id of ["steps", "episodes", "version"]) {
    find(id).textContent = shown[id].toLocaleString("en");
  }
  requestAnimationFrame(draw);
}

async function main() {
  settings = await (await fetch("settings.json")).json();
  poles = new CartPoles(settings.slots, settings.seed, settings.maxSteps);
  find("button").onclick = () => (stopping === null ? start() : stopping.abort());
  requestAnimationFrame(draw);
  if (settings.needsToken) {
    find("token").hidden = false;
    shown.status = "paste the token of the server, then press Start";
  } else {
    await start();
  }
}

main().catch((error) => {
  find("status").textContent = `${error.message}; is environments/browser/main still running?`;
});
