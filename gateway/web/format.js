// Numbers as people read them. Pure.

export const NOTHING = "–";

const THIN = "\u202f";

// Seconds; null is nothing.
export function duration(seconds) {
  if (seconds === null) {
    return NOTHING;
  }
  if (seconds < 0.9995) {
    return `${Math.round(seconds * 1000)}${THIN}ms`;
  }
  if (seconds < 9.95) {
    return `${seconds.toFixed(1)}${THIN}s`;
  }
  if (seconds < 99.5) {
    return `${Math.round(seconds)}${THIN}s`;
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) {
    return `${minutes}${THIN}min`;
  }
  const hours = Math.round(minutes / 60);
  return hours < 100 ? `${hours}${THIN}h` : `${Math.round(hours / 24)}${THIN}d`;
}

// A count or a rate: three digits that mean something.
export function amount(number) {
  if (number === null) {
    return NOTHING;
  }
  if (number === 0 || Number.isInteger(number) || number >= 99.95) {
    return Math.round(number).toLocaleString("en");
  }
  return number < 0.05 ? "<0.1" : number.toFixed(1);
}

// A part of one.
export function percent(part) {
  return part === null ? NOTHING : `${Math.round(part * 100)}${THIN}%`;
}
