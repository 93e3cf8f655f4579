// The mesh, looked at once a second while somebody does.

import { getJson } from "./api.js";
import { Chart, WINDOW_S } from "./chart.js";
import { announce, byId, setText } from "./dom.js";
import { amount, duration, NOTHING, percent } from "./format.js";
import { History } from "./history.js";
import { CLASS_COLUMNS, classRows, TENANT_COLUMNS, tenantRows, WORKER_COLUMNS, workerRows } from "./mesh_tables.js";
import { ratesBetween, sum } from "./rates.js";
import { Table } from "./table.js";

const INTERVAL_MS = 1000;

export class Mesh {
  #history = new History(WINDOW_S);
  #charts;
  #tables;
  // What ends the looking; null while nobody looks.
  #watching = null;
  #problem = "";

  constructor(onRefused) {
    this.onRefused = onRefused;
    const chart = (id, options) => new Chart(byId(id), options);
    this.#charts = {
      waiting: chart("chart-waiting", { title: "Requests waiting", format: amount }),
      running: chart("chart-running", { title: "Requests running", format: amount }),
      tokens: chart("chart-tokens", { title: "Tokens per second", format: amount, stacked: true }),
      blocks: chart("chart-blocks", { title: "KV cache", format: percent, top: 1, stacked: true }),
      first: chart("chart-first", { title: "First tokens in time", format: percent, top: 1, empty: "no class promises it" }),
      gap: chart("chart-gap", { title: "Tokens at their pace", format: percent, top: 1, empty: "no class promises it" }),
      refused: chart("chart-refused", { title: "Refusals per second", format: amount, empty: "none since the start" }),
    };
    this.#tables = {
      classes: new Table(byId("classes"), CLASS_COLUMNS),
      workers: new Table(byId("workers"), WORKER_COLUMNS),
      tenants: new Table(byId("tenants"), TENANT_COLUMNS),
    };
    byId("mesh-key").addEventListener("click", () => this.onRefused(""));
  }

  watch(wanted) {
    if (!wanted) {
      this.#watching?.abort();
      this.#watching = null;
    } else if (!this.#watching) {
      this.#watching = new AbortController();
      this.#look(this.#watching.signal);
    }
  }

  async #look(signal) {
    while (!signal.aborted) {
      try {
        this.#take(await getJson("console/mesh", signal));
        this.#tell(null);
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        this.#tell(error);
        // Waiting does not mend these; another key does.
        if (error.status === 401 || error.status === 403) {
          this.#watching = null;
          return;
        }
      }
      await new Promise((resume) => setTimeout(resume, INTERVAL_MS));
    }
  }

  #take(data) {
    const before = this.#history.latest;
    const rates = before && ratesBetween(before.data, data);
    this.#history.push({ time: performance.now() / 1000, data, rates });
    this.#draw(data, rates);
  }

  #draw({ fleet, traffic }, rates) {
    const history = this.#history;
    const { times } = history;
    const blocks = history.blocks();
    const live = fleet.workers.filter((each) => each.live).length;
    setText(byId("tile-workers"), `${live} of ${fleet.workers.length}`);
    setText(byId("tile-running"), amount(fleet.requests_running));
    setText(byId("tile-waiting"), amount(fleet.requests_waiting));
    setText(byId("tile-tokens"), rates ? amount(rates.tokens) : NOTHING);
    setText(byId("tile-blocks"), percent(blocks[0].values.at(-1)));
    setText(byId("tile-uptime"), duration(traffic.uptime_s));
    this.#charts.waiting.show(times, history.byClass((each) => each.load.requests_waiting));
    this.#charts.running.show(times, history.byClass((each) => each.load.requests_running));
    this.#charts.tokens.show(times, history.byClass((_, flow) => flow && flow.tokens));
    this.#charts.blocks.show(times, blocks);
    this.#charts.first.show(times, history.kept("ttft"));
    this.#charts.gap.show(times, history.kept("gap"));
    this.#charts.refused.show(times, history.refusals());
    this.#tables.classes.show(classRows(traffic, rates));
    this.#tables.workers.show(workerRows(fleet, rates));
    const tenants = tenantRows(traffic, rates, sum(fleet.workers.map((each) => each.blocks_total)));
    this.#tables.tenants.show(tenants);
    byId("tenants-part").hidden = !tenants.length;
    setText(byId("tenants-left"), traffic.tenants_omitted ? `${amount(traffic.tenants_omitted)} more are not shown.` : "");
  }

  // What was seen last stays when the mesh is lost.
  #tell(error) {
    const problem = error?.message ?? "";
    if (problem !== this.#problem) {
      announce(problem || "The mesh answers again.");
    }
    this.#problem = problem;
    setText(byId("mesh-problem-text"), problem);
    byId("mesh-problem").hidden = !problem;
    byId("mesh-key").hidden = error?.status !== 401 && error?.status !== 403;
    byId("mesh-data").dataset.stale = String(Boolean(problem));
    byId("mesh-data").hidden = this.#history.latest === null;
  }
}
