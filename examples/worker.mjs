// A worker of the Open Job Spec in Node.js, without any dependency: it fetches, works, reports, and says that it lives.
//
//   OJS_URL=http://127.0.0.1:8000 OJS_TOKEN=... node examples/worker.mjs mail invoices
//
// Put your own handlers into HANDLERS, by the type of job. Ctrl-C or SIGTERM ends it when its job is done.

import { hostname } from "node:os";

const BASE = `${(process.env.OJS_URL ?? "http://127.0.0.1:8000").replace(/\/$/, "")}/ojs/v1/workers`;
const NAME = `${hostname()}-${process.pid}`;
const HEADERS = {
  "Content-Type": "application/openjobspec+json",
  Authorization: `Bearer ${process.env.OJS_TOKEN ?? ""}`,
};
const HEARTBEAT_MS = 5_000;
const WAIT_MS = 10_000;
const NOT_ALLOWED = [401, 403];

const HANDLERS = {
  // An example: ask a third party for something that takes a while.
  "example.visit": async (url, seconds = 0.1) => ({ status: (await fetch(`${url}?seconds=${seconds}`)).status }),
  "example.echo": async (...args) => args,
};

let state = "running";
let active = null;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Send a request; return the answer, null if the server refused it, and throw if it can't be reached.
async function post(path, body) {
  const answer = await fetch(`${BASE}/${path}`, { method: "POST", headers: HEADERS, body: JSON.stringify(body) });
  if (answer.ok) return answer.json();
  console.error(`${path}: ${answer.status} ${await answer.text()}`);
  // A wrong token, or one for other queues: asking again does not help.
  if (path === "fetch" && NOT_ALLOWED.includes(answer.status)) process.exit(1);
  return null;
}

async function work(job) {
  active = job.id;
  const proof = { job_id: job.id, ticket: job.ticket, worker_id: NAME };
  const handler = HANDLERS[job.type];
  try {
    if (handler) await post("ack", { ...proof, result: await handler(...job.args) });
    else await post("nack", { ...proof, error: { code: "no_handler", type: "NoHandler", message: `no handler for ${job.type}` } });
  } catch (error) {
    await post("nack", { ...proof, error: { code: "handler_error", type: error.name, message: error.message } });
  }
  active = null;
}

async function beat() {
  try {
    const reply = await post("heartbeat", { worker_id: NAME, active_jobs: active ? [active] : [] });
    if (reply && state === "running") state = reply.state;
  } catch {
    // The server is away: the next one reports it.
  }
}

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => (state = "terminate"));
setInterval(beat, HEARTBEAT_MS).unref();
const queues = process.argv.length > 2 ? process.argv.slice(2) : ["default"];
while (state === "running") {
  try {
    const found = await post("fetch", { queues, worker_id: NAME, wait_ms: WAIT_MS });
    for (const job of found?.jobs ?? []) await work(job);
    if (!found) await pause(1_000);
  } catch (error) {
    console.error(`the server is away: ${error.message}`);
    await pause(1_000);
  }
}
