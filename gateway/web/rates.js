// What happened per second between two looks at a mesh. Pure; as `tercet top` reckons it.

// Null if the scheduler was started anew between, or no time passed.
export function ratesBetween(before, after) {
  const seconds = after.traffic.uptime_s - before.traffic.uptime_s;
  if (before.traffic.epoch !== after.traffic.epoch || seconds <= 0) {
    return null;
  }
  const classes = new Map(before.traffic.classes.map((each) => [each.name, each.counts]));
  const tenants = new Map(before.traffic.tenants.map((each) => [tenantKey(each), each.counts]));
  const workers = new Map(before.fleet.workers.map((each) => [each.address, each]));
  const flows = new Map(after.traffic.classes.map((each) => [each.name, flow(classes.get(each.name), each.counts, seconds)]));
  return {
    seconds,
    tokens: sum([...flows.values()].map((each) => each.tokens)),
    classes: flows,
    tenants: new Map(
      after.traffic.tenants
        // Those that are gone are no flow: others join them.
        .filter((each) => each.tenant !== null && tenants.has(tenantKey(each)))
        .map((each) => [tenantKey(each), flow(tenants.get(tenantKey(each)), each.counts, seconds)]),
    ),
    workers: new Map(
      after.fleet.workers.map((each) => [
        each.address,
        {
          steps: rose(workers.get(each.address)?.steps, each.steps) / seconds,
          tokens: rose(workers.get(each.address)?.tokens, each.tokens) / seconds,
        },
      ]),
    ),
  };
}

export const tenantKey = (row) => JSON.stringify([row.tenant, row.traffic_class]);

export const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

// Kept of all that there was to keep; null if there was nothing.
export function keptPart({ kept, broken }) {
  return kept + broken ? kept / (kept + broken) : null;
}

// By reason, over several counts.
export function refusedBy(counts) {
  const reasons = new Map();
  for (const { refused } of counts) {
    for (const [reason, count] of Object.entries(refused)) {
      reasons.set(reason, (reasons.get(reason) ?? 0) + count);
    }
  }
  return reasons;
}

function flow(before, after, seconds) {
  const refused = {};
  for (const [reason, count] of Object.entries(after.refused)) {
    refused[reason] = Math.max(0, count - (before?.refused[reason] ?? 0)) / seconds;
  }
  return {
    accepted: Math.max(0, after.accepted - (before?.accepted ?? 0)) / seconds,
    tokens: Math.max(0, after.generated_tokens - (before?.generated_tokens ?? 0)) / seconds,
    refused,
  };
}

// Counts of a worker begin anew with its stream.
function rose(before, after) {
  if (before === undefined) {
    return 0;
  }
  return after >= before ? after - before : after;
}
