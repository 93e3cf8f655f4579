// The chat: questions in, answers out, one at a time.

import { Answer } from "./answer.js";
import { getJson } from "./api.js";
import { announce, button, byId, element } from "./dom.js";
import { readSettings } from "./settings.js";
import { Turn } from "./turn.js";

const EXAMPLES = [
  "Name three rivers, and where each of them begins.",
  "Explain in two sentences what a scheduler does.",
  "Write a Python function that reverses a list.",
];
// How far from its end a conversation still follows it, in pixels.
const NEAR_END = 60;

export class Chat {
  #log = byId("log");
  #form = byId("ask");
  #question = byId("question");
  #send = byId("send");
  #stop = byId("stop");
  #settings = byId("settings");
  #empty = byId("empty");
  #turns = [];
  // The answer that is being made.
  #answer = null;

  // `onRefused` gets the error of an answer for want of a key; `onInvalid` shows the settings, of which one is wrong.
  constructor(onRefused, onInvalid) {
    this.onRefused = onRefused;
    this.onInvalid = onInvalid;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    this.#question.addEventListener("keydown", (event) => {
      // An input method ends a word with Enter, too.
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#form.requestSubmit();
      }
    });
    this.#question.addEventListener("input", () => this.#fit());
    this.#stop.addEventListener("click", () => this.#answer?.stop());
    byId("clear").addEventListener("click", () => this.#clear());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#answer && !document.querySelector("dialog[open]")) {
        this.#answer.stop();
      }
    });
    byId("examples").append(...EXAMPLES.map((text) => button(text, { class: "example" }, () => this.#try(text))));
  }

  // Models and classes that there are, for the form. Throws ApiError.
  async load() {
    const [models, about] = await Promise.all([getJson("v1/models"), getJson("console/about")]);
    fill(byId("model"), models.data.map((each) => [each.id, each.id]));
    fill(byId("class"), [["", "the default"], ...about.classes.map((name) => [name, name])]);
    return about;
  }

  #try(text) {
    this.#question.value = text;
    this.#form.requestSubmit();
  }

  #ask() {
    const text = this.#question.value;
    if (!text.trim() || this.#answer || !this.#valid()) {
      return;
    }
    this.#question.value = "";
    this.#fit();
    this.#turns.at(-1)?.settle();
    const turn = new Turn(text, () => this.#run(turn));
    this.#empty.hidden = true;
    this.#log.append(turn.root);
    this.#turns.push(turn);
    this.#run(turn);
  }

  async #run(turn) {
    if (this.#answer || !this.#valid()) {
      return;
    }
    const { body, headers, system } = readSettings(new FormData(this.#settings));
    const messages = [
      ...(system ? [{ role: "system", content: system }] : []),
      ...this.#turns.filter((each) => each !== turn).flatMap((each) => each.messages ?? []),
      { role: "user", content: turn.question },
    ];
    const answer = new Answer();
    this.#hold(answer);
    turn.begin(answer);
    this.#follow(true);
    await answer.run({ ...body, messages }, headers, () => {
      const near = this.#nearEnd();
      turn.change();
      this.#follow(near);
    });
    const near = this.#nearEnd();
    turn.end();
    this.#follow(near);
    // A conversation that was cleared meanwhile has given it up.
    if (this.#answer === answer) {
      this.#hold(null);
    }
    if (answer.error?.status === 401) {
      this.onRefused(answer.error);
    }
  }

  #valid() {
    if (!this.#settings.checkValidity()) {
      this.onInvalid();
    }
    return this.#settings.reportValidity();
  }

  #hold(answer) {
    this.#answer = answer;
    const stoppable = answer !== null;
    const focused = document.activeElement;
    this.#stop.hidden = !stoppable;
    this.#send.hidden = stoppable;
    // Whoever sent with the keyboard can stop with it, and go on: what was pressed is hidden now.
    const pressed = focused === this.#send || focused === this.#stop;
    if (pressed || (stoppable && focused.closest("#empty, .actions"))) {
      (stoppable ? this.#stop : this.#question).focus();
    }
  }

  #clear() {
    this.#answer?.stop();
    this.#hold(null);
    this.#turns.forEach((turn) => turn.settle());
    this.#turns = [];
    this.#log.replaceChildren();
    this.#empty.hidden = false;
    announce("Conversation cleared.");
    this.#question.focus();
  }

  #nearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = byId("scroll");
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  #follow(near) {
    if (near) {
      requestAnimationFrame(() => {
        byId("scroll").scrollTop = byId("scroll").scrollHeight;
      });
    }
  }

  // As high as what is written, as far as the stylesheet lets it.
  #fit() {
    this.#question.style.height = "auto";
    this.#question.style.height = `${this.#question.scrollHeight + 2}px`;
  }
}

function fill(select, options) {
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
  if (options.some(([value]) => value === chosen)) {
    select.value = chosen;
  }
}
