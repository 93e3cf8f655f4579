// An answer in events, whatever the pieces in which it comes.

export class EventReader {
  #rest = "";
  #lines = [];

  // The data of each event that `text` makes whole.
  push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) {
        this.#lines.push(line.slice(5).replace(/^ /, ""));
      } else if (line === "" && this.#lines.length) {
        events.push(this.#lines.join("\n"));
        this.#lines = [];
      }
    }
    return events;
  }
}
