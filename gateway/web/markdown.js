// The little Markdown that models write, as data. Pure, and linear in the text but for nested emphasis.
//
// A block is {kind, source, ...}: paragraph, quote, heading (level), item (ordered, marker) with spans; code (language,
// text); rule. A span is {kind, text} or {kind, spans}: text, code, strong, emphasis. Links and pictures stay text: what a
// model makes up is nothing to click on.

// None of these looks at a character more than a few times: a line may be as long as an answer.
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const MAX_DEPTH = 4;
// More stars than that are a row of stars.
const MAX_RUN = 3;

export function parse(text) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = readBlock(lines, at);
    if (block) {
      blocks.push({ ...block, source: lines.slice(at, next).join("\n") });
    }
    at = next;
  }
  return blocks;
}

function readBlock(lines, at) {
  const line = lines[at];
  if (!line.trim()) {
    return [null, at + 1];
  }
  if (isFence(line)) {
    return readCode(lines, at, FENCE.exec(line));
  }
  if (RULE.test(line)) {
    return [{ kind: "rule" }, at + 1];
  }
  const heading = HEADING.exec(line);
  if (heading) {
    return [{ kind: "heading", level: heading[1].length, spans: parseSpans(heading[2]) }, at + 1];
  }
  const item = ITEM.exec(line);
  if (item) {
    return readItem(lines, at, item);
  }
  const kind = QUOTE.test(line) ? "quote" : "paragraph";
  let end = at + 1;
  while (end < lines.length && continues(lines[end]) && QUOTE.test(lines[end]) === (kind === "quote")) {
    end += 1;
  }
  const own = lines.slice(at, end).map((each) => (kind === "quote" ? QUOTE.exec(each)[1] : each));
  return [{ kind, spans: parseSpans(own.join("\n")) }, end];
}

// A fence that is never closed, as while it is being written, holds all that follows.
function readCode(lines, at, [, fence, info]) {
  const [language] = info.trim().split(/\s/, 1);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], fence)) {
    end += 1;
  }
  return [{ kind: "code", language, text: lines.slice(at + 1, end).join("\n") }, Math.min(end + 1, lines.length)];
}

function closes(line, fence) {
  const own = FENCE.exec(line);
  return own !== null && own[1][0] === fence[0] && own[1].length >= fence.length && !own[2].trim();
}

function readItem(lines, at, [, indent, bullet, number, first]) {
  let end = at + 1;
  while (end < lines.length && continues(lines[end])) {
    end += 1;
  }
  const text = [first, ...lines.slice(at + 1, end).map((each) => each.trimStart())].join("\n");
  const level = Math.min(3, Math.floor(indent.replaceAll("\t", "  ").length / 2));
  return [{ kind: "item", ordered: !bullet, marker: bullet ? "•" : `${number}.`, level, spans: parseSpans(text) }, end];
}

// Whether a line goes on with what stands before it.
function continues(line) {
  return line.trim() && !isFence(line) && ![HEADING, RULE, ITEM].some((begins) => begins.test(line));
}

function isFence(line) {
  const fence = FENCE.exec(line);
  return fence !== null && !(fence[1][0] === "`" && fence[2].includes("`"));
}

export function parseSpans(text, depth = 0) {
  const spans = [];
  // Markers of which no further one closes: each is looked for once.
  const lost = new Set();
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const run = runAt(text, at);
    const found = run && spanAt(text, at, run, depth, lost);
    if (!found) {
      const end = at + Math.max(run, 1);
      plain += text.slice(at, end);
      at = end;
      continue;
    }
    if (plain) {
      spans.push({ kind: "text", text: plain });
      plain = "";
    }
    spans.push(found.span);
    at = found.end;
  }
  if (plain) {
    spans.push({ kind: "text", text: plain });
  }
  return spans;
}

// How many of one sign of Markdown stand at `at`.
function runAt(text, at) {
  const sign = text[at];
  let run = 0;
  while ((sign === "`" || sign === "*" || sign === "_") && text[at + run] === sign) {
    run += 1;
  }
  return run;
}

// A span that begins at `at` with a run of signs, with the index behind it; null if none does.
function spanAt(text, at, run, depth, lost) {
  const sign = text[at];
  if (sign === "`") {
    return codeAt(text, at, sign.repeat(run), lost);
  }
  if (depth >= MAX_DEPTH || run > MAX_RUN || /\s|^$/.test(text[at + run] ?? "")) {
    return null;
  }
  // Between letters an underline belongs to a name.
  if (sign === "_" && isWord(text[at - 1])) {
    return null;
  }
  const marker = sign.repeat(Math.min(run, 2));
  const end = closingOf(text, at + marker.length, marker, lost);
  if (end < 0) {
    return null;
  }
  const spans = parseSpans(text.slice(at + marker.length, end), depth + 1);
  return { span: { kind: marker.length > 1 ? "strong" : "emphasis", spans }, end: end + marker.length };
}

function codeAt(text, at, marker, lost) {
  if (lost.has(marker)) {
    return null;
  }
  for (let end = text.indexOf(marker, at + marker.length); end >= 0; end = text.indexOf(marker, end)) {
    const run = runAt(text, end);
    if (run === marker.length) {
      return { span: { kind: "code", text: text.slice(at + run, end) }, end: end + run };
    }
    end += run;
  }
  lost.add(marker);
  return null;
}

// Where emphasis from `from` on ends; below 0 if nowhere.
function closingOf(text, from, marker, lost) {
  if (lost.has(marker)) {
    return -1;
  }
  for (let end = text.indexOf(marker, from + 1); end >= 0; end = text.indexOf(marker, end + 1)) {
    const behind = text[end + marker.length];
    // One of two stars closes nothing that one star began.
    const single = marker.length === 2 || (behind !== marker && text[end - 1] !== marker);
    if (single && !/\s/.test(text[end - 1]) && !(marker[0] === "_" && isWord(behind))) {
      return end;
    }
  }
  lost.add(marker);
  return -1;
}

function isWord(character) {
  return character !== undefined && /[\p{L}\p{N}]/u.test(character);
}
