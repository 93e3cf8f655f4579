// The console: which view is shown, and the key.

import { isKey, keepKey, readKey } from "./api.js";
import { Chat } from "./chat.js";
import { announce, byId, setText } from "./dom.js";
import { Mesh } from "./mesh.js";

const VIEWS = ["chat", "mesh"];
const WIDE = matchMedia("(min-width: 60rem)");
const RETRY_MS = 2000;

const dialog = byId("key-dialog");
const panel = byId("panel");
const panelButton = byId("panel-button");
const chat = new Chat(
  (error) => askForKey(error.message),
  () => showPanel(true),
);
const mesh = new Mesh((problem) => askForKey(problem));
let view = VIEWS[0];
// What loads again, where the gateway did not answer.
let waiting;

async function load() {
  clearTimeout(waiting);
  try {
    const about = await chat.load();
    setText(byId("version"), about.version);
    setText(byId("problem"), "");
  } catch (error) {
    if (error.status === 401) {
      askForKey(readKey() ? error.message : "");
    } else {
      setText(byId("problem"), error.message);
      waiting = setTimeout(load, error.retryAfterMs ?? RETRY_MS);
    }
  }
}

function show() {
  view = VIEWS.find((each) => location.hash === `#${each}`) ?? view;
  for (const each of VIEWS) {
    byId(`${each}-view`).hidden = each !== view;
    const link = document.querySelector(`nav a[href="#${each}"]`);
    if (each === view) {
      link.setAttribute("aria-current", "page");
    } else {
      link.removeAttribute("aria-current");
    }
  }
  document.title = `${view === "mesh" ? "Mesh" : "Chat"} · Tercet`;
  mesh.watch(view === "mesh" && !document.hidden);
}

function askForKey(problem) {
  byId("key").value = readKey();
  setText(byId("key-problem"), problem);
  if (!dialog.open) {
    dialog.showModal();
  }
}

function showPanel(open) {
  panel.hidden = !open;
  panelButton.setAttribute("aria-expanded", String(open));
}

byId("key-button").addEventListener("click", () => askForKey(""));
byId("key-cancel").addEventListener("click", () => dialog.close());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("key").value.trim();
  if (!isKey(text)) {
    setText(byId("key-problem"), "A key has letters, digits and signs of ASCII alone.");
    return;
  }
  keepKey(text);
  dialog.close();
  announce(text ? "Key kept for this tab." : "Key removed.");
  load();
  show();
});

panelButton.addEventListener("click", () => {
  showPanel(panel.hidden);
  if (!panel.hidden && !WIDE.matches) {
    byId("model").focus();
  }
});
byId("panel-close").addEventListener("click", () => {
  showPanel(false);
  panelButton.focus();
});
WIDE.addEventListener("change", () => showPanel(WIDE.matches));
addEventListener("hashchange", show);
document.addEventListener("visibilitychange", show);

showPanel(WIDE.matches);
show();
load();
