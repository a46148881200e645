/* The linked table: sort, filter, select, copy as CSV. Each row is made once; sorting and filtering put rows into the page. */
"use strict";

Craft.thousands = new Intl.NumberFormat("en-US");  // made once: toLocaleString makes one at every call

/* A cell's text, with its interval if it has one. */
Craft.cell = (column, row) => column.texts ? column.texts[row] : String(column.values[row] ?? "");

Craft.csv = function (table, rows) {
  // a text that a spreadsheet would take for a formula is quoted as text
  const cell = value => {
    const text = (typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" : "") + String(value ?? "");
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const columns = table.columns.flatMap(column => {
    const name = column.key.replace(/^[pm]\./, "");
    return [[name, column.values], ...["low", "high"].filter(end => column[end]).map(end => [`${name}_${end}`, column[end]])];
  });
  return [columns.map(([name]) => cell(name)), ...rows.map(row => columns.map(([, values]) => cell(values[row])))].map(cells => cells.join(",") + "\n").join("");
};

/* Whether the text is on the clipboard now. Frames, and pages that are not from this machine or by https, may not copy. */
Craft.copyText = text => Promise.resolve().then(() => navigator.clipboard.writeText(text)).then(() => true, () => false);

/* `on` has pin(id), ring(id or null), choose(ids or null). */
Craft.Table = class {
  constructor(holder, on) {
    this.on = on;
    this.query = "";
    this.sort = this.selected = null;
    this.all = false;  // whether the columns are shown that come when they are asked for
    const make = Craft.element;
    this.shared = make("details", {class: "shared", hidden: true}, make("summary", {}), make("dl", {}));
    this.search = make("input", {type: "search", placeholder: "Filter: words, or params<10000", "aria-label": "Filter the table", oninput: () => { this.query = this.search.value; this.render(); }});
    this.chip = make("button", {type: "button", class: "chip", hidden: true, onclick: () => this.on.choose(null)});
    this.said = make("span", {class: "said", role: "status"});
    this.more = make("button", {type: "button", class: "quiet", onclick: () => { this.all = !this.all; this.fill(); }});
    this.tools = make("div", {class: "tools"}, this.search, this.chip, this.more, make("button", {type: "button", class: "quiet", onclick: () => this.copy()}, "Copy CSV"), this.said);
    this.byHand = make("textarea", {class: "by-hand", hidden: true, readonly: true, rows: 6, "aria-label": "The copied table"});
    this.head = make("tr", {});
    const ring = event => this.on.ring(this.idOf(event.target));
    this.body = make("tbody", {
      onmouseover: ring, onmouseleave: () => this.on.ring(null), onfocusin: ring, onfocusout: () => this.on.ring(null), onkeydown: event => this.walk(event),
      onclick: event => { if (event.target.closest(".name")) this.on.pin(this.idOf(event.target)); },
    });
    this.table = make("table", {}, make("thead", {}, this.head), this.body);
    this.scroll = make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table"}, this.table);
    this.count = make("p", {class: "note", role: "status"});
    holder.append(this.shared, this.tools, this.byHand, this.scroll, this.count);
  }

  update(table) {
    this.data = table;
    this.index = new Map(table.id.map((id, row) => [id, row]));
    [this.front, this.possible, this.enough] = [table.front, table.possible, table.enough].map(ids => new Set(ids || []));
    this.words = table.id.map((_, row) => table.columns.map(column => String(column.values[row] ?? "")).join("\u0001").toLowerCase());
    this.tools.hidden = Boolean(table.plain);
    this.table.classList.toggle("plain", Boolean(table.plain));
    const shared = table.shared || [];
    this.shared.hidden = !shared.length;
    this.shared.querySelector("summary").textContent = `The same in all: ${shared.slice(0, 4).map(([name, value]) => `${name} ${value}`).join(", ").slice(0, 160)}${shared.length > 4 ? ", …" : ""}`;
    this.shared.querySelector("dl").replaceChildren(...shared.flatMap(([name, value]) => [Craft.element("dt", {}, name), Craft.element("dd", {}, value)]));
    this.fill();
  }

  pin(id) {
    this.pinned = id;
    for (const line of this.body.rows) line.classList.toggle("pinned", line.craftId === id);
  }

  columns() { return this.data.columns.filter(column => this.all || !column.more); }

  /* Rows that are shown, in order. A word must occur somewhere; heading>number compares a column. */
  rows() {
    const table = this.data, bare = name => name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
    this.unknown = "";
    const tests = this.query.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
      const parts = /^([^<>=]+)(<=|>=|<|>|=)(.+)$/.exec(word);
      const column = parts && table.columns.find(one => [one.key, one.key.slice(2), one.label].some(name => bare(name) === bare(parts[1])));
      if (parts && !column) this.unknown = parts[1];
      if (!column) return row => this.words[row].includes(word);
      const limit = Number(parts[3]);
      const compare = {"<": value => value < limit, ">": value => value > limit, "<=": value => value <= limit, ">=": value => value >= limit, "=": value => value === limit || String(value).toLowerCase() === parts[3]}[parts[2]];
      return row => column.values[row] !== null && compare(column.values[row]);
    });
    const rows = table.id.map((_, row) => row).filter(row => (!this.selected || this.selected.has(table.id[row])) && tests.every(test => test(row)));
    const column = this.sort && table.columns.find(one => one.key === this.sort.key);
    if (column) {
      const collator = Craft.collator = Craft.collator || new Intl.Collator(undefined, {numeric: true});
      const way = this.sort.down ? -1 : 1;
      rows.sort((a, b) => {
        const x = column.values[a], y = column.values[b];
        if (x === null || y === null) return (x === null) - (y === null);  // missing values come last in both directions
        return way * (typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y)));
      });
    }
    return rows;
  }

  /* Makes every row, and puts those that are shown into the page. */
  fill() {
    this.lines = this.data.id.map((_, row) => this.row(row));
    this.render();
  }

  render() {
    const table = this.data;
    if (!table) return;
    const rows = this.rows(), columns = this.columns();
    for (const row of rows) this.lines[row].classList.toggle("pinned", this.pinned === table.id[row]);
    // elements that are made again give the keyboard focus back to the one that had it
    const active = this.scroll.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    this.head.replaceChildren(...columns.map(column => this.heading(column)));
    this.body.replaceChildren(...rows.map(row => this.lines[row]));
    const again = active && [...this.scroll.querySelectorAll("[data-focus]")].find(one => one.dataset.focus === active);
    if (again) again.focus({preventScroll: true});
    this.more.hidden = !table.columns.some(column => column.more);
    this.more.textContent = this.all ? "Fewer columns" : "All columns";
    const all = table.id.length, shown = rows.length;
    const missing = this.unknown && !shown ? ` No column is named ${this.unknown}: ${table.columns.filter(column => column.kind !== "text").map(column => column.label).join(", ")}.` : "";
    this.count.textContent = table.plain ? "" : `${shown}${shown < all ? ` of ${all}` : ""} ${table.legend}${missing}`;
    this.chip.hidden = !this.selected;
    this.chip.textContent = this.selected ? `${this.selected.size} selected  ✕ clear` : "";
  }

  /* The arrow keys go up and down from name to name. */
  walk(event) {
    const line = event.target.classList.contains("name") && event.target.closest("tr");
    const next = line && {ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling}[event.key];
    if (!next) return;
    event.preventDefault();
    next.querySelector(".name").focus();
  }

  idOf(element) {
    const line = element.closest("tr");
    return line && !this.data.plain ? line.craftId : null;
  }

  heading(column) {
    const sorted = this.sort && this.sort.key === column.key ? (this.sort.down ? "descending" : "ascending") : "none";
    const sign = {descending: " ↓", ascending: " ↑", none: ""}[sorted];
    const button = Craft.element("button", {type: "button", title: column.about || column.label, "data-focus": "head " + column.key, onclick: () => {
      const first = column.kind !== "text" && column.better !== "minimize";
      this.sort = {key: column.key, down: sorted === "none" ? first : !this.sort.down};
      this.render();
    }}, column.label + sign);
    return Craft.element("th", {scope: "col", "aria-sort": sorted, class: column.kind === "text" ? "" : "num"}, button);
  }

  row(row) {
    const table = this.data, id = table.id[row], line = document.createElement("tr");
    line.craftId = id;
    for (const column of this.columns()) {
      const text = Craft.cell(column, row), cell = document.createElement("td");
      cell.dataset.heading = column.label;  // narrow screens show a row as a card, each cell with its heading
      if (column.kind !== "text") cell.classList.add("num");
      if ((column.best || []).includes(row)) cell.classList.add("best");
      else if (table.plain) cell.classList.add("wrap");
      if (column.key === "label") {
        cell.append(Craft.element("button", {type: "button", class: "name", title: text, "data-focus": "row " + id}, text));
        const front = this.front.has(id) ? ["●", "on the front"] : this.possible.has(id) ? ["○", "may be on the front"] : [];
        for (const [mark, says] of [front, this.enough.has(id) ? ["✓", "enough"] : []]) if (mark) cell.append(Craft.element("span", {class: "sign", title: says, role: "img", "aria-label": says}, mark));
      } else {
        cell.textContent = text;
        if (text.length > 30) cell.title = text;
      }
      line.append(cell);
    }
    return line;
  }

  async copy() {
    const rows = this.rows(), text = Craft.csv(this.data, rows), copied = await Craft.copyText(text);
    this.said.textContent = copied ? `${rows.length} rows copied as CSV` : "The browser does not allow copying here: take the text below.";
    this.byHand.hidden = copied;
    this.byHand.value = text;
    if (!copied) this.byHand.focus();
    if (!copied) this.byHand.select();
  }
};
