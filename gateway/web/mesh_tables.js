// What the tables of a mesh have in their columns and rows. Pure.

import { amount, duration, NOTHING, percent } from "./format.js";
import { nameOf } from "./history.js";
import { keptPart, refusedBy, sum, tenantKey } from "./rates.js";

// Red below what is promised.
const judged = (promise, percentile) => ({
  text: ({ traffic }) => percent(keptPart(traffic.recent[promise])),
  tone: ({ traffic }) => {
    const part = keptPart(traffic.recent[promise]);
    if (part === null || !traffic.targets[percentile]) {
      return "";
    }
    return part * 100 >= traffic.targets[percentile] ? "good" : "bad";
  },
});
const refused = (flows) => (flows === null ? NOTHING : amount(sum(flows.flatMap((each) => Object.values(each.refused)))));
const firstToken = ({ traffic }, quantile) => (traffic.ttft.count ? duration(traffic.ttft[quantile]) : NOTHING);

// {traffic, flow}: a class, and its rates or null.
export const CLASS_COLUMNS = [
  { label: "Class", text: ({ traffic }) => nameOf(traffic.name) },
  { label: "Waiting", text: ({ traffic }) => amount(traffic.load.requests_waiting) },
  { label: "Oldest", text: ({ traffic }) => duration(traffic.load.oldest_s) },
  { label: "Running", text: ({ traffic }) => amount(traffic.load.requests_running) },
  { label: "Tokens/s", text: ({ flow }) => amount(flow && flow.tokens) },
  { label: "First token p50", text: (row) => firstToken(row, "p50_s") },
  { label: "p95", text: (row) => firstToken(row, "p95_s") },
  { label: "Promised", text: ({ traffic }) => duration(traffic.targets.ttft_s || null) },
  { label: "In time", ...judged("ttft", "ttft_percentile") },
  { label: "At pace", ...judged("gap", "gap_percentile") },
  { label: "Served", text: ({ traffic }) => amount(traffic.counts.served) },
  { label: "Refused/s", text: ({ flow }) => refused(flow && [flow]) },
  { label: "Refused, why", text: ({ traffic }) => reasonsOf(traffic.counts) },
];

// {worker, rate}: a worker, and its rates or null.
export const WORKER_COLUMNS = [
  { label: "Worker", text: ({ worker }) => worker.address },
  { label: "State", text: ({ worker }) => stateOf(worker), tone: ({ worker }) => (worker.live ? "good" : "bad") },
  { label: "Model", text: ({ worker }) => worker.model || NOTHING },
  { label: "Device", text: ({ worker }) => worker.device || NOTHING },
  { label: "Sequences", text: ({ worker }) => amount(worker.sequences) },
  {
    label: "KV in use",
    text: ({ worker }) => percent(partOf(worker, "blocks_used")),
    part: ({ worker }) => partOf(worker, "blocks_used"),
  },
  { label: "Cached", text: ({ worker }) => percent(partOf(worker, "blocks_cached")) },
  { label: "Steps/s", text: ({ rate }) => amount(rate && rate.steps) },
  { label: "Tokens/s", text: ({ rate }) => amount(rate && rate.tokens) },
];

// {name, loads, counts, flows, blocks}: a tenant over its classes; `flows` null without rates; all blocks there are.
export const TENANT_COLUMNS = [
  { label: "Tenant", text: ({ name }) => name },
  { label: "Waiting", text: ({ loads }) => amount(sum(loads.map((each) => each.requests_waiting))) },
  { label: "Running", text: ({ loads }) => amount(sum(loads.map((each) => each.requests_running))) },
  {
    label: "KV",
    text: (row) => percent(blocksOf(row)),
    part: (row) => blocksOf(row),
  },
  { label: "Tokens/s", text: ({ flows }) => amount(flows && sum(flows.map((each) => each.tokens))) },
  { label: "Promises kept", text: ({ counts }) => percent(keptOf(counts)) },
  { label: "Refused/s", text: ({ flows }) => refused(flows) },
  { label: "Refused", text: ({ counts }) => amount(sum([...refusedBy(counts).values()])) },
];

export function classRows(traffic, rates) {
  return traffic.classes.map((each) => ({ traffic: each, flow: rates?.classes.get(each.name) ?? null }));
}

export function workerRows(fleet, rates) {
  return fleet.workers.map((worker) => ({ worker, rate: rates?.workers.get(worker.address) ?? null }));
}

// None where nobody keeps tenants.
export function tenantRows(traffic, rates, blocks) {
  const names = [...new Set(traffic.tenants.map((each) => each.tenant))];
  if (names.every((name) => name === "")) {
    return [];
  }
  return names.map((tenant) => {
    const parts = traffic.tenants.filter((each) => each.tenant === tenant);
    return {
      name: tenant === null ? "(others)" : tenant || "(nobody)",
      loads: parts.map((each) => each.load),
      counts: parts.map((each) => each.counts),
      flows: rates && parts.map((each) => rates.tenants.get(tenantKey(each))).filter(Boolean),
      blocks,
    };
  });
}

function stateOf(worker) {
  if (!worker.live) {
    return "lost";
  }
  return worker.draining ? "leaving" : "live";
}

function reasonsOf(counts) {
  const reasons = [...refusedBy([counts])].filter(([, count]) => count).sort(([, one], [, other]) => other - one);
  return reasons.map(([reason, count]) => `${reason} ${amount(count)}`).join(", ") || NOTHING;
}

function partOf(worker, blocks) {
  return worker.blocks_total ? worker[blocks] / worker.blocks_total : null;
}

function blocksOf({ loads, blocks }) {
  return blocks ? Math.min(1, sum(loads.map((each) => each.kv_blocks)) / blocks) : null;
}

function keptOf(counts) {
  const kept = (which) => sum(counts.map((each) => each.promises.request[which]));
  return keptPart({ kept: kept("kept"), broken: kept("broken") });
}
