// Elements, made without a word of HTML: what a model or a mesh says can only ever become text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return furnish(document.createElement(name), attributes, children);
}

export function drawing(name, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, name), attributes, children);
}

export function button(label, attributes, onClick) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", onClick);
  return made;
}

// Leaves alone what is as it should be: a selection survives, and nobody is read the same twice.
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

// Said to those who hear the page instead of seeing it.
export function announce(text) {
  setText(byId("announcer"), text);
}

function furnish(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
