// A question and its answer on the page.

import { announce, button, element, setText } from "./dom.js";
import { amount, duration } from "./format.js";
import { RichText } from "./rich_text.js";

const ENDS = {
  done: (answer) => (answer.finish === "length" ? "cut off by its length" : "finished"),
  stopped: () => "stopped",
  failed: () => "failed",
};

// `onAgain` is called when the question shall be asked once more.
export class Turn {
  #answerBox;
  #rich;
  #figures;
  #problem;
  #actions;
  #copy;
  #again;
  #wait;
  #countdown = null;
  #frame = null;

  constructor(question, onAgain) {
    this.question = question;
    this.answer = null;
    this.#rich = new RichText(element("div", { class: "rich" }));
    this.#figures = element("p", { class: "figures" });
    this.#problem = element("div", { class: "problem", role: "alert" });
    this.#wait = element("span", { class: "wait" });
    this.#copy = button("Copy", { class: "quiet" }, () => this.#copyText());
    this.#again = button("Ask again", { class: "quiet" }, onAgain);
    this.#actions = element("div", { class: "actions" }, this.#copy, this.#again, this.#wait);
    this.#answerBox = element(
      "div",
      { class: "answer" },
      element("h3", { class: "unseen" }, "Answer"),
      this.#rich.root,
      this.#problem,
      element("div", { class: "below" }, this.#figures, this.#actions),
    );
    this.root = element(
      "article",
      { class: "turn" },
      element("div", { class: "question" }, element("h3", { class: "unseen" }, "You"), element("p", {}, question)),
      this.#answerBox,
    );
  }

  // What a next request has of it; null if there is nothing of an answer to go on from.
  get messages() {
    return this.answer?.text
      ? [
          { role: "user", content: this.question },
          { role: "assistant", content: this.answer.text },
        ]
      : null;
  }

  begin(answer) {
    this.answer = answer;
    clearInterval(this.#countdown);
    this.#problem.replaceChildren();
    setText(this.#wait, "");
    this.#answerBox.setAttribute("aria-busy", "true");
    this.#draw();
  }

  // Many pieces that come between two pictures are one change.
  change() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  end() {
    this.#draw();
    this.#answerBox.removeAttribute("aria-busy");
    const { answer } = this;
    announce(`Answer ${ENDS[answer.state](answer)}.`);
    if (answer.error) {
      this.#showProblem(answer.error);
    }
  }

  // Only the last question can be asked again: the others have been gone on from.
  settle() {
    this.#again.remove();
    clearInterval(this.#countdown);
    setText(this.#wait, "");
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = null;
    const { answer } = this;
    this.#rich.show(answer.text);
    this.#answerBox.dataset.state = answer.state;
    this.#copy.hidden = !answer.text;
    this.#again.hidden = !answer.ended;
    setText(this.#figures, figuresOf(answer));
  }

  #showProblem(error) {
    this.#problem.append(
      element("strong", {}, error.code),
      element("p", {}, error.message),
    );
    if (error.retryAfterMs !== null) {
      this.#waitUntil(Date.now() + error.retryAfterMs);
    }
  }

  #waitUntil(moment) {
    const show = () => {
      const left = Math.ceil((moment - Date.now()) / 1000);
      this.#again.disabled = left > 0;
      setText(this.#wait, left > 0 ? `in ${left} s` : "");
      if (left <= 0) {
        clearInterval(this.#countdown);
      }
    };
    clearInterval(this.#countdown);
    this.#countdown = setInterval(show, 250);
    show();
  }

  async #copyText() {
    const done = await copied(this.answer.text);
    announce(done ? "Copied." : "The browser does not allow to copy.");
    setText(this.#copy, done ? "Copied" : "Not copied");
    setTimeout(() => setText(this.#copy, "Copy"), 1500);
  }
}

// One line: how fast it was, how much, why it ended.
function figuresOf(answer) {
  if (answer.state === "waiting") {
    return "waiting for the mesh";
  }
  const about = answer.usage ? "" : "about ";
  const parts = [];
  if (answer.firstS !== null) {
    parts.push(`first token ${duration(answer.firstS)}`);
  }
  if (answer.rate !== null) {
    parts.push(`${about}${amount(answer.rate)} tokens/s`);
  }
  if (answer.usage || answer.tokens) {
    parts.push(`${about}${amount(answer.tokens)} ${answer.tokens === 1 ? "token" : "tokens"}`);
  }
  const cached = answer.usage?.prompt_tokens_details?.cached_tokens;
  if (answer.usage) {
    parts.push(`prompt ${amount(answer.usage.prompt_tokens)}${cached ? `, ${amount(cached)} cached` : ""}`);
  }
  if (answer.ended) {
    parts.push(ENDS[answer.state](answer));
  }
  if (answer.ignored) {
    parts.push(`ignored: ${answer.ignored}`);
  }
  return parts.join(" · ");
}

// Where the page came over plain HTTP from another host, browsers have no clipboard but the old way to it.
async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const before = document.activeElement;
  const box = element("textarea", { class: "unseen", "aria-hidden": "true" });
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  before?.focus();
  return done;
}
