// One answer of a model: asked for, received, measured. Knows nothing of the page.

import { ApiError, postForText } from "./api.js";
import { EventReader } from "./events.js";

const PATH = "v1/chat/completions";

// `state` is waiting, running, done, stopped or failed; times are of the tab's clock in milliseconds.
export class Answer {
  state = "waiting";
  text = "";
  // Why it ended: stop or length.
  finish = null;
  error = null;
  // Parameters that changed nothing, as the gateway names them.
  ignored = "";
  usage = null;
  #pieces = 0;
  #startedAt = performance.now();
  #firstAt = null;
  #lastAt = null;
  #whole = false;
  #abort = new AbortController();

  get ended() {
    return this.state !== "waiting" && this.state !== "running";
  }

  // Seconds from the question to the first text; null while there is none.
  get firstS() {
    return this.#firstAt === null ? null : (this.#firstAt - this.#startedAt) / 1000;
  }

  // Exact where `usage` came: at the end. Until then a piece stands for a token, which some have more of.
  get tokens() {
    return this.usage?.completion_tokens ?? this.#pieces;
  }

  // Tokens per second behind the first; null while there is one alone.
  get rate() {
    const seconds = (this.#lastAt - this.#firstAt) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }

  // Closing the connection cancels the request.
  stop() {
    this.#abort.abort();
  }

  // Returns when it has ended, however; `onChange` is called for each change before.
  async run(body, headers, onChange) {
    const asked = { ...body, stream: true, stream_options: { include_usage: true } };
    const onHead = (head) => {
      this.ignored = head.get("x-tercet-ignored") ?? "";
    };
    const reader = new EventReader();
    try {
      for await (const text of postForText(PATH, asked, headers, this.#abort.signal, onHead)) {
        this.state = "running";
        reader.push(text).forEach((data) => this.#take(data));
        onChange();
      }
      if (!this.#whole) {
        throw new ApiError(0, "connection_lost", "The answer broke off.");
      }
      this.state = "done";
    } catch (error) {
      this.state = error.name === "AbortError" ? "stopped" : "failed";
      this.error = this.state === "failed" ? error : null;
    }
  }

  #take(data) {
    if (data === "[DONE]") {
      this.#whole = true;
      return;
    }
    const piece = JSON.parse(data);
    if (piece.error) {
      throw new ApiError(200, piece.error.code, piece.error.message);
    }
    this.usage = piece.usage ?? this.usage;
    const [choice] = piece.choices;
    this.finish = choice?.finish_reason ?? this.finish;
    if (choice?.delta?.content) {
      this.text += choice.delta.content;
      this.#pieces += 1;
      this.#lastAt = performance.now();
      this.#firstAt ??= this.#lastAt;
    }
  }
}
