// A table whose rows come and go. Cells that did not change are left alone: a selection survives.

import { element, setText } from "./dom.js";

// A column is {label, text(row), tone(row)?, part(row)?}: `tone` names a style, `part` is shown as a bar.
export class Table {
  #columns;
  #body = element("tbody");

  constructor(table, columns) {
    this.#columns = columns;
    const heads = columns.map((column) => element("th", { scope: "col" }, column.label));
    table.append(element("thead", {}, element("tr", {}, ...heads)), this.#body);
  }

  show(rows) {
    while (this.#body.rows.length > rows.length) {
      this.#body.lastElementChild.remove();
    }
    rows.forEach((row, index) => {
      const shown = this.#body.rows[index] ?? this.#body.appendChild(this.#makeRow());
      this.#columns.forEach((column, at) => fillCell(shown.cells[at], column, row));
    });
  }

  #makeRow() {
    return element(
      "tr",
      {},
      ...this.#columns.map((column, at) => {
        const cell = at ? element("td") : element("th", { scope: "row" });
        if (column.part) {
          cell.append(element("span", { class: "bar", "aria-hidden": "true" }, element("span")));
        }
        cell.append(element("span", { class: "text" }));
        return cell;
      }),
    );
  }
}

function fillCell(cell, column, row) {
  setText(cell.querySelector(".text"), column.text(row));
  cell.dataset.tone = column.tone?.(row) ?? "";
  if (column.part) {
    cell.querySelector(".bar > span").style.width = `${100 * (column.part(row) ?? 0)}%`;
  }
}
