// What the form beside the chat asks for: the parameters of a request. What is left empty is the model's to decide.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

// `data` is the form's. Gives {body, headers, system}.
export function readSettings(data) {
  const text = (name) => (data.get(name) ?? "").trim();
  const body = { model: text("model") };
  for (const name of NUMBERS) {
    if (text(name)) {
      body[name] = Number(text(name));
    }
  }
  const stop = (data.get("stop") ?? "").split(/\r?\n/).filter(Boolean);
  if (stop.length) {
    body.stop = stop.map((each) => each.replaceAll("\\n", "\n"));
  }
  const headers = text("class") ? { "x-tercet-class": text("class") } : {};
  return { body, headers, system: text("system") };
}
