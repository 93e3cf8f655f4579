// What was seen of a mesh in the last two minutes, as series for charts. Pure.

import { keptPart, refusedBy, sum } from "./rates.js";

// A moment is {time, data, rates}: seconds, what /console/mesh said, and the rates since the moment before or null.
export class History {
  #moments = [];
  #windowS;

  constructor(windowS) {
    this.#windowS = windowS;
  }

  get latest() {
    return this.#moments.at(-1) ?? null;
  }

  get times() {
    return this.#moments.map((each) => each.time);
  }

  push(moment) {
    this.#moments = this.#moments.filter((each) => each.time > moment.time - this.#windowS);
    this.#moments.push(moment);
  }

  // One series for each class that the latest moment has; `value` gets the class, and the flow of it or null.
  byClass(value) {
    return this.#classes().map((latest, tone) => this.#series(latest, tone, value));
  }

  // How often a promise, ttft or gap, was kept in the minute before, of classes that make it.
  kept(promise) {
    return this.#classes().flatMap((latest, tone) =>
      latest.targets[`${promise}_s`]
        ? {
            ...this.#series(latest, tone, (each) => keptPart(each.recent[promise])),
            note: `of ${latest.targets[`${promise}_percentile`]}\u202f%`,
          }
        : [],
    );
  }

  // Refusals per second by reason; those that never were are left out.
  refusals() {
    const reasons = refusedBy(this.latest?.data.traffic.classes.map((each) => each.counts) ?? []);
    return [...reasons.keys()].map((reason) => ({
      name: reason,
      values: this.#moments.map(({ rates }) =>
        rates ? sum([...rates.classes.values()].map((each) => each.refused[reason] ?? 0)) : null,
      ),
    }));
  }

  // Parts of all blocks of all live workers.
  blocks() {
    const part = (of) =>
      this.#moments.map(({ data }) => {
        const total = sum(data.fleet.workers.map((each) => each.blocks_total));
        return total ? sum(data.fleet.workers.map(of)) / total : null;
      });
    return [
      { name: "in use", values: part((each) => each.blocks_used) },
      { name: "cached prefixes", values: part((each) => each.blocks_cached) },
    ];
  }

  // A class keeps its tone in all charts.
  #series({ name }, tone, value) {
    const values = this.#moments.map(({ data, rates }) => {
      const found = data.traffic.classes.find((each) => each.name === name);
      return found ? value(found, rates?.classes.get(name) ?? null) : null;
    });
    return { name, tone, values };
  }

  // Classes of requests: what has none was refused before.
  #classes() {
    return this.latest?.data.traffic.classes.filter((each) => each.name) ?? [];
  }
}

export const nameOf = (name) => name || "(no class)";
