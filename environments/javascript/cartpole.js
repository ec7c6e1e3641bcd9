// CartPole-v1, as in Gymnasium: the equations of Barto, Sutton and Anderson (1983) without
// friction, Euler's method, and a limit of 500 steps, which is reported as a truncation.
(function () {
  "use strict";

  const GRAVITY = 9.8; // m/s^2
  const POLE_MASS = 0.1; // kg
  const MASS = 1 + POLE_MASS; // with the cart
  const HALF_LENGTH = 0.5; // of the pole, m
  const FORCE = 10; // N
  const STEP_SEC = 0.02;
  const MAX_X = 2.4; // m
  const MAX_THETA = (12 * Math.PI) / 180;
  const MAX_STEPS = 500;

  // Numbers of [0, 1) that a seed decides: mulberry32, of Tommy Ettinger.
  function makeRandom(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let bits = Math.imul(state ^ (state >>> 15), state | 1);
      bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
      return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  // One step of [x, velocity, angle, angular velocity].
  function move([x, xDot, theta, thetaDot], action) {
    const moment = POLE_MASS * HALF_LENGTH;
    const sine = Math.sin(theta);
    const cosine = Math.cos(theta);
    const force = action === 1 ? FORCE : -FORCE;
    const push = (force + moment * thetaDot * thetaDot * sine) / MASS;
    const thetaAcceleration = (GRAVITY * sine - cosine * push)
      / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cosine * cosine) / MASS));
    const xAcceleration = push - (moment * thetaAcceleration * cosine) / MASS;
    return [
      x + STEP_SEC * xDot,
      xDot + STEP_SEC * xAcceleration,
      theta + STEP_SEC * thetaDot,
      thetaDot + STEP_SEC * thetaAcceleration,
    ];
  }

  function hasFallen([x, , theta]) {
    return Math.abs(x) > MAX_X || Math.abs(theta) > MAX_THETA;
  }

  // Several poles that are stepped together. What `reset` and `step` return is a message for
  // `client.step`.
  //
  // states: of all slots, for drawing.
  class CartPoles {
    constructor(slots, seed = Math.random() * 2 ** 32, maxSteps = MAX_STEPS) {
      this.states = new Array(slots).fill(null);
      this._steps = new Array(slots).fill(0);
      this._random = makeRandom(seed);
      this._maxSteps = Math.min(maxSteps, MAX_STEPS);
    }

    reset() {
      this.states.forEach((_, slot) => this._begin(slot));
      return { observation: this.states };
    }

    // A slot whose episode has ended begins the next one at once: its last observation is in
    // finalObservation, the first of the next episode in observation.
    step(actions) {
      const reached = this.states.map((state, slot) => move(state, actions[slot]));
      const terminated = reached.map(hasFallen);
      const truncated = reached.map(
        (_, slot) => ++this._steps[slot] >= this._maxSteps && !terminated[slot]);
      this.states = reached.slice();
      reached.forEach((_, slot) => {
        if (terminated[slot] || truncated[slot]) this._begin(slot);
      });
      const message = { reward: reached.map(() => 1), observation: this.states };
      const ended = [...terminated, ...truncated].includes(true);
      return ended ? { ...message, terminated, truncated, finalObservation: reached } : message;
    }

    _begin(slot) {
      this.states[slot] = Array.from({ length: 4 }, () => 0.1 * this._random() - 0.05);
      this._steps[slot] = 0;
    }
  }

  const SPACES = { observation: { box: [4] }, action: { discrete: 2 } };
  if (typeof module === "object" && module.exports) {
    module.exports = { CartPoles, SPACES, move, hasFallen };
  } else {
    globalThis.cartpole = { CartPoles, SPACES, MAX_X };
  }
})();
