// Requests to the server. The key stays in this variable: never in storage, and never in an address.

const NEEDS_KEY = document.body.dataset.needsKey === "true";
const BASE = location.origin + location.pathname.replace(/[^/]*$/, ""); // a proxy may serve the page below a path
let key = "";
let running = null; // the controller of the request that is not yet answered

/** An error for the user. `status`: that of the answer; 0: there was none. */
class RequestError extends Error {
  constructor(message, status, field = null) {
    super(message);
    Object.assign(this, { status, field });
  }
}

/** Cancel the request that is not yet answered. */
function cancel() {
  running?.abort();
  running = null;
}

/**
 * Send a request, and cancel an earlier one that is not yet answered.
 * @param path Path of the endpoint, such as "v1/predict".
 * @param body Value to send as JSON; undefined: send a GET request.
 * @returns {answer, stages, milliseconds}: the answer, the times of the header Server-Timing by stage, and the time until
 *   the answer was here. null: another request has cancelled this one.
 */
async function send(path, body) {
  cancel();
  const controller = (running = new AbortController());
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal: controller.signal, cache: "no-store", referrerPolicy: "no-referrer" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const started = performance.now();
  try {
    const response = await fetch(BASE + path, options);
    const text = await response.text();
    if (running !== controller) return null;
    if (!response.ok) throw refusal(response, text);
    const milliseconds = performance.now() - started;
    return { answer: JSON.parse(text), stages: stagesOf(response), milliseconds };
  } catch (error) {
    if (running !== controller || error.name === "AbortError") return null;
    if (error instanceof RequestError) throw error;
    const message = error instanceof SyntaxError ? "the answer is not JSON" : "the server does not answer";
    throw new RequestError(`${message}: check that bertie serve runs at ${BASE}`, 0);
  } finally {
    if (running === controller) running = null;
  }
}

/** Return the error of a response: the server's own sentence. */
function refusal(response, text) {
  try {
    const { message, param } = JSON.parse(text).error;
    return new RequestError(message, response.status, param);
  } catch {
    return new RequestError(`status ${response.status} ${response.statusText}`.trim(), response.status);
  }
}

/** Return the milliseconds of each stage: {tokenize, queue, compute, total}. */
function stagesOf(response) {
  const parts = (response.headers.get("Server-Timing") ?? "").split(",").map((part) => part.trim().split(";dur="));
  return Object.fromEntries(parts.filter(([, value]) => value).map(([name, value]) => [name, Number(value)]));
}

/** Return the times of a request in words. */
function timing({ stages, milliseconds }) {
  const shown = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
  const parts = Object.entries(stages).map(([stage, value]) => `${stage} ${shown(value)}`);
  return [...parts, `round trip ${shown(milliseconds)}`].join(" · ");
}
