// Calls of the gateway's HTTP API, and how they fail. The key lives as long as the tab.

const KEY = "tercet.key";

export class ApiError extends Error {
  constructor(status, code, message, retryAfterMs = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

export const readKey = () => sessionStorage.getItem(KEY) ?? "";

export function keepKey(text) {
  if (text) {
    sessionStorage.setItem(KEY, text);
  } else {
    sessionStorage.removeItem(KEY);
  }
}

// Whether a header can carry it.
export const isKey = (text) => /^[\x21-\x7e]*$/.test(text);

// Throws ApiError; a call that was given up throws AbortError.
export async function getJson(path, signal) {
  const response = await call(path, { signal });
  return guarded(() => response.json());
}

// Yields the answer's text as it comes. `onHead` gets the headers. Throws as getJson.
export async function* postForText(path, body, headers, signal, onHead) {
  const response = await call(path, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  onHead(response.headers);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await guarded(() => reader.read());
      if (done) {
        return;
      }
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    // Who stops listening tells the gateway, which cancels.
    reader.cancel().catch(() => {});
  }
}

async function call(path, options) {
  const key = readKey();
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await guarded(() =>
    fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" }),
  );
  if (!response.ok) {
    throw await refusal(response);
  }
  return response;
}

async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new ApiError(0, "connection_lost", "The connection to the gateway was lost.");
  }
}

async function refusal(response) {
  const waits = response.headers.get("retry-after-ms");
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // Something else than the gateway has answered.
  }
  const message = told.message ?? `The answer was ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, told.code ?? `http_${response.status}`, message, waits && Number(waits));
}
