// A text that grows, shown with the Markdown that it has. Blocks that did not change keep their elements.

import { element } from "./dom.js";
import { parse } from "./markdown.js";

const SPANS = { code: "code", strong: "strong", emphasis: "em" };

export class RichText {
  #shown = [];

  constructor(root) {
    this.root = root;
  }

  show(text) {
    const blocks = parse(text);
    blocks.forEach((block, index) => {
      const before = this.#shown[index];
      if (before?.kind === block.kind && before.source === block.source) {
        return;
      }
      const made = render(block);
      if (before) {
        this.root.children[index].replaceWith(made);
      } else {
        this.root.append(made);
      }
    });
    while (this.root.children.length > blocks.length) {
      this.root.lastElementChild.remove();
    }
    this.#shown = blocks;
  }
}

function render(block) {
  switch (block.kind) {
    case "code":
      return element(
        "pre",
        // Long lines are reached with the keyboard, too.
        { tabindex: "0", role: "group", "aria-label": block.language ? `Code, ${block.language}` : "Code" },
        element("code", {}, block.text),
      );
    case "rule":
      return element("hr");
    case "heading":
      // Below those of the page.
      return element("p", { class: "heading", role: "heading", "aria-level": block.level + 3 }, ...inline(block.spans));
    case "item":
      return element(
        "p",
        { class: `item level-${block.level}` },
        element("span", { class: "marker" }, `${block.marker} `),
        element("span", {}, ...inline(block.spans)),
      );
    case "quote":
      return element("blockquote", {}, ...inline(block.spans));
    default:
      return element("p", {}, ...inline(block.spans));
  }
}

function inline(spans) {
  return spans.map((span) => {
    if (span.kind === "text") {
      return span.text;
    }
    return element(SPANS[span.kind], {}, ...(span.spans ? inline(span.spans) : [span.text]));
  });
}
