// CartPole-v1 as a client of an rlx server; see --help. For the flags, see ../README.md.
"use strict";

const fs = require("node:fs");
const { CartPoles, SPACES } = require("./cartpole.js");
const { connect, RlxError } = require("./rlx.js");

const HELP = `usage: javascript/main [--flag VALUE ...]

CartPole-v1 in JavaScript as a client of an rlx server.

  --rlx-server HOST:PORT   or ws://HOST:PORT, with Node 22 or newer; default: localhost:7001
  --name NAME              shown in the server's log; default: javascript and process id
  --num-envs K             poles that are stepped together; default: 1
  --max-episode-steps N    steps after which an episode is cut off, at most 500, the default
  --seed N                 seed of the first states; default: random
  --episodes N             end after N episodes; default: when training ends
  --exploit                choose the best actions; learn nothing
  --retry-sleep MIN MAX    seconds before a reconnection, drawn between the two; default: 1 10
  --token-file FILE        file with the token that the server requires, readable by its owner only
  --tls-ca FILE            use TLS; CA certificates to trust (PEM file)
  --tls-cert FILE, --tls-key FILE
                           client certificate and its private key (PEM files)
  --no-versions            do not send the version of Node
  -h, --help               show this and exit

Without --token-file, the token is $RELAAX_TOKEN. The client reconnects if the server is lost. Exit
status: 0 at the end of training or after --episodes, 2 for a usage or configuration error, 130
after Ctrl-C, 143 after SIGTERM, 1 for an error after which a retry can succeed.
`;
const MISTAKES = ["SPACE_MISMATCH", "VERSION_MISMATCH", "UNAUTHENTICATED", "TLS", "USAGE"];

function refuse(flag, what) {
  throw new RlxError("USAGE", `${flag}: ${what}`);
}

function parseNumber(flag, text, least, isInteger = true) {
  const number = Number(text);
  if (text.trim() === "" || !(number >= least && number < 2 ** 53)
    || (isInteger && !Number.isInteger(number))) {
    const what = isInteger ? "an integer" : "a number";
    refuse(flag, `'${text}', expected ${what} of ${least} or more`);
  }
  return number;
}

function parsePause(flag, least, most) {
  const pause = [least, most].map((text) => parseNumber(flag, text, 0, false));
  return pause[0] <= pause[1] ? pause : refuse(flag, `${least} ${most}, expected MIN <= MAX`);
}

function readFile(flag, file) {
  try {
    return fs.readFileSync(file, "utf8");
  } catch (error) {
    return refuse(flag, error.message);
  }
}

// Returns the only line of a file that is not a comment.
function readToken(flag, file) {
  const text = readFile(flag, file);
  if (fs.statSync(file).mode & 0o077) {
    refuse(flag, `users other than the owner of ${file} have permissions for it; run chmod 600`);
  }
  const lines = text.split("\n").map((line) => line.trim());
  const tokens = lines.filter((line) => line && !line.startsWith("#"));
  if (tokens.length !== 1 || /\s/.test(tokens[0])) refuse(flag, `expected only a token in ${file}`);
  return tokens[0];
}

function parse(argv) {
  const settings = { episodes: Infinity };
  const tls = {};
  const options = {
    ...SPACES, name: `javascript-${process.pid}`, slots: 1, token: process.env.RELAAX_TOKEN || "",
    retry: true, versions: { node: process.versions.node },
  };
  const words = [...argv];
  while (words.length) {
    const flag = words.shift();
    const take = () => (words.length ? words.shift() : refuse(flag, "expected a value after it"));
    const takeCount = (least) => parseNumber(flag, take(), least);
    const takeFile = () => readFile(flag, take());
    switch (flag) {
      case "-h": case "--help": process.stdout.write(HELP); process.exit(0); break;
      case "--rlx-server": options.address = take(); break;
      case "--name": options.name = take(); break;
      case "--num-envs": options.slots = takeCount(1); break;
      case "--max-episode-steps": settings.maxSteps = takeCount(1); break;
      case "--seed": settings.seed = takeCount(0); break;
      case "--episodes": settings.episodes = takeCount(1); break;
      case "--exploit": options.mode = "exploit"; break;
      case "--retry-sleep": options.pauseSec = parsePause(flag, take(), take()); break;
      case "--token-file": options.token = readToken(flag, take()); break;
      case "--tls-ca": tls.ca = takeFile(); break;
      case "--tls-cert": tls.cert = takeFile(); break;
      case "--tls-key": tls.key = takeFile(); break;
      case "--no-versions": delete options.versions; break;
      default: refuse(flag, "unknown; --help lists the flags");
    }
  }
  if (!tls.cert !== !tls.key) refuse("--tls-cert, --tls-key", "one is missing; set both");
  if (tls.cert && !tls.ca) refuse("--tls-ca", "missing, but --tls-cert is set; set both");
  if (tls.ca) options.tls = tls;
  return { options, settings };
}

async function play(client, poles, settings, counts) {
  let message = poles.reset();
  while (counts.episodes < settings.episodes) {
    const actions = await client.step(message);
    for (const { slot, score, length } of client.episodes) {
      counts.episodes += 1;
      if (!process.env.RELAAX_QUIET) console.log(`slot ${slot}: score ${score} in ${length} steps`);
    }
    if (actions === null) return;
    message = poles.step(actions);
    counts.steps += actions.length;
  }
}

// A hostile server could send characters that control the terminal.
function clean(text) {
  return String(text).replace(/[^\x20-\x7e]+/g, " ");
}

async function main() {
  const { options, settings } = parse(process.argv.slice(2));
  const address = options.address || "localhost:7001";
  let isLost = false;
  options.onLost = (error, sec) => {
    isLost = true;
    console.log(`lost the rlx server: ${clean(error.message)}; retrying in ${sec.toFixed(1)} s`);
  };
  const client = await connect(options);
  const poles = new CartPoles(options.slots, settings.seed, settings.maxSteps);
  const counts = { episodes: 0, steps: 0 };
  while (!client.finished && counts.episodes < settings.episodes) {
    if (isLost) console.log(`reconnected to ${address}`);
    isLost = false;
    try {
      await play(client, poles, settings, counts);
    } catch (error) {
      if (!(error instanceof RlxError)) throw error;
      await client.reconnect(error);
    }
  }
  client.close();
  const why = client.finished || "done";
  console.log(`javascript: ${clean(why)}; ${counts.episodes} episodes, ${counts.steps} steps`);
}

process.on("SIGINT", () => process.exit(130));
process.on("SIGTERM", () => process.exit(143));
main().catch((error) => {
  if (!(error instanceof RlxError)) throw error;
  console.error(`javascript: ${clean(error.message)}`);
  process.exit(MISTAKES.includes(error.code) || error.field === "address" ? 2 : 1);
});
