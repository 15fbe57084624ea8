// Requests to the admin port of the gateway. The token, if one is needed, is stored only in this module.

const PATIENCE_MS = 5000;
let token = "";

export class Problem extends Error {
  constructor(status, message, told = null) {
    super(message);
    this.status = status; // 0 if no answer came
    this.told = told;
  }
}

export function setToken(text) {
  token = text;
}

async function ask(path, parameters) {
  const query = new URLSearchParams(parameters).toString();
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    answer = await fetch(`v1/${path}${query ? `?${query}` : ""}`, { headers, signal, credentials: "omit", cache: "no-store" });
    return { answer, text: await answer.text() };
  } catch (error) {
    throw new Problem(0, error.name === "TimeoutError" ? "no answer within 5 s" : "no connection");
  }
}

export async function get(path, parameters = {}) {
  const { answer, text } = await ask(path, parameters);
  let told = null;
  try {
    told = JSON.parse(text);
  } catch {
    throw new Problem(answer.status, `the answer (${answer.status}) is not JSON`);
  }
  if (!answer.ok) throw new Problem(answer.status, told.message ?? told.reason ?? answer.statusText, told);
  return told;
}

export async function records(parameters) {
  const { answer, text } = await ask("records", parameters);
  if (!answer.ok) {
    let message = answer.statusText;
    try {
      message = JSON.parse(text).message ?? message;
    } catch {
      // an answer without JSON keeps the text of its HTTP status
    }
    throw new Problem(answer.status, message);
  }
  const about = (name) => Number(answer.headers.get(`tutti-${name}`));
  const lines = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  return { lines, first: about("first"), next: about("next"), start: about("start"), frontier: about("frontier") };
}
