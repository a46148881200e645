/* The linked table: sort, filter, select, copy. It keeps all rows as columns and puts only the rows in sight into the page. */
"use strict";

Craft.SPARE = 12;  // rows above and below those in sight, so that a little scrolling draws nothing
Craft.SIGHT = 560;  // the table's height in pixels at most, as the style has it

/* `on` has pin(id), ring(id or null), choose(ids or null). */
Craft.Table = class {
  constructor(holder, on) {
    this.holder = holder;
    this.on = on;
    this.query = "";
    this.sort = null;
    this.selected = null;
    this.only = false;
    this.all = false;  // whether the columns are shown that come when they are asked for
    this.shown = [];
    this.top = 0;
    this.height = 29;
    this.build();
  }

  build() {
    const make = Craft.element;
    this.shared = make("details", {class: "shared", hidden: true}, make("summary", {}), make("dl", {}));
    this.search = make("input", {type: "search", placeholder: "Filter: words, or params<10000", "aria-label": "Filter the table", oninput: () => { this.query = this.search.value; this.toTop(); this.render(); }});
    this.chip = make("button", {type: "button", class: "chip", hidden: true, onclick: () => this.on.choose(null)});
    this.said = make("span", {class: "said", role: "status"});
    const copies = Object.keys(Craft.copies).map(kind => make("button", {type: "button", class: "quiet", onclick: () => this.copy(kind)}, "Copy " + kind));
    this.more = make("button", {type: "button", class: "quiet", onclick: () => { this.all = !this.all; this.render(); }});
    this.tools = make("div", {class: "tools"}, this.search, this.chip, this.more, ...copies, this.said);
    this.byHand = make("textarea", {class: "by-hand", hidden: true, readonly: true, rows: 6, "aria-label": "The copied table"});
    this.head = make("tr", {"aria-rowindex": "1"});
    this.body = make("tbody", {
      onmouseover: event => this.on.ring(this.idOf(event.target)), onmouseleave: () => this.on.ring(null), onkeydown: event => this.walk(event),
      onfocusin: event => this.on.ring(this.idOf(event.target)), onfocusout: () => this.on.ring(null),
      onclick: event => { if (event.target.closest(".name")) this.on.pin(this.idOf(event.target)); },
    });
    this.table = make("table", {}, make("thead", {}, this.head), this.body);
    this.scroll = make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table", onscroll: () => this.scrolled()}, this.table);
    this.count = make("p", {class: "note", role: "status"});
    this.holder.append(this.shared, this.tools, this.byHand, this.scroll, this.count);
  }

  update(table) {
    this.data = table;
    this.index = new Map(table.id.map((id, row) => [id, row]));
    this.front = new Set(table.front || []);
    this.possible = new Set(table.possible || []);
    this.enough = new Set(table.enough || []);
    // words to filter by are put together once, not at every key
    this.texts = table.columns.map(column => table.id.map((_, row) => Craft.cell(column, row)));
    this.words = table.id.map((_, row) => table.columns.map(column => String(column.values[row] ?? "")).join("\u0001").toLowerCase());
    this.widths = this.texts.map((texts, index) => texts.reduce((most, text) => Math.max(most, text.length * (table.columns[index].kind === "text" ? 0.9 : 1)), table.columns[index].label.length * 0.95));
    this.tools.hidden = Boolean(table.plain);
    this.table.classList.toggle("plain", Boolean(table.plain));
    this.shared.hidden = !(table.shared && table.shared.length);
    if (!this.shared.hidden) {
      this.shared.querySelector("summary").textContent = `The same in all: ${table.shared.slice(0, 4).map(([name, value]) => `${name} ${value}`).join(", ").slice(0, 160)}${table.shared.length > 4 ? ", …" : ""}`;
      this.shared.querySelector("dl").replaceChildren(...table.shared.flatMap(([name, value]) => [Craft.element("dt", {}, name), Craft.element("dd", {}, value)]));
    }
    this.render();
  }

  setSelection(ids, only) {
    this.selected = ids;
    this.only = Boolean(ids) && only;
    this.toTop();
    this.render();
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
    let rows = table.id.map((_, row) => row);
    if (this.only) rows = rows.filter(row => this.selected.has(table.id[row]));
    if (tests.length) rows = rows.filter(row => tests.every(test => test(row)));
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

  render() {
    const table = this.data;
    if (!table) return;
    this.shown = this.rows();
    this.best = Craft.best(table, this.shown);
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    this.keepFocus(() => this.head.replaceChildren(...this.columns().map(column => this.heading(column, table.columns.indexOf(column)))));
    this.more.hidden = !table.columns.some(column => column.more);
    this.more.textContent = this.all ? "Fewer columns" : "All columns";
    this.draw();
    const all = table.id.length, shown = this.shown.length;
    const missing = this.unknown && !shown ? ` No column is named ${this.unknown}: ${table.columns.filter(column => column.kind !== "text").map(column => column.label).join(", ")}.` : "";
    this.count.textContent = table.plain ? "" : `${shown}${shown < all ? ` of ${all}` : ""} configurations. ● is on the front${table.objectives ? ` of ${table.objectives}` : ""}${this.possible.size ? ", ○ may be" : ""}${this.enough.size ? `; ✓ is enough: the smallest that is ${table.rule}` : ""}${table.columns.some(column => (column.low || []).some(end => end !== null)) ? `; ± and brackets: ${table.intervals}` : ""}.${missing}`;
    this.chip.hidden = !this.selected;
    this.chip.textContent = this.selected ? `${this.selected.size} selected  ✕ clear` : "";
  }

  /* Puts the rows in sight into the page; margins stand for the others, so that the scroll bar is that of the whole table. */
  draw() {
    const rows = this.shown;
    const first = this.data.plain ? 0 : Math.max(0, Math.min(Math.floor(this.top / this.height), rows.length - 1) - Craft.SPARE);
    const last = this.data.plain ? rows.length : Math.min(rows.length, Math.ceil((this.top + Craft.SIGHT) / this.height) + Craft.SPARE);
    this.first = first;
    this.last = last;
    this.table.style.marginTop = first * this.height + "px";
    this.table.style.marginBottom = (rows.length - last) * this.height + "px";
    this.keepFocus(() => this.body.replaceChildren(...rows.slice(first, last).map((row, index) => this.row(row, first + index))));
  }

  scrolled() {
    this.top = this.scroll.scrollTop;
    if (this.data.plain || !this.body.rows.length) return;
    this.height = this.body.rows[0].getBoundingClientRect().height || this.height;
    const above = Math.floor(this.top / this.height), below = Math.ceil((this.top + Craft.SIGHT) / this.height);
    if (above - Craft.SPARE / 3 < this.first && this.first > 0 || below + Craft.SPARE / 3 > this.last && this.last < this.shown.length) this.draw();
  }

  toTop() {
    if (this.top) this.scroll.scrollTop = this.top = 0;
  }

  /* The arrow keys go up and down from name to name, also to rows that are not in the page yet. */
  walk(event) {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    const line = event.target.closest("tr");
    if (!step || !line || !event.target.classList.contains("name")) return;
    event.preventDefault();
    const place = Math.max(0, Math.min(this.shown.length - 1, line.craftPlace + step));
    const above = place * this.height, below = above + 2 * this.height;  // two: the heading covers one
    if (above < this.top) this.scroll.scrollTop = this.top = above;
    else if (below > this.top + this.scroll.clientHeight) this.scroll.scrollTop = this.top = below - this.scroll.clientHeight;
    if (place < this.first || place >= this.last) this.draw();
    const name = this.body.rows[place - this.first].querySelector(".name");
    if (name) name.focus({preventScroll: true});
  }

  idOf(element) {
    const line = element.closest("tr");
    return line && !this.data.plain ? line.craftId : null;
  }

  /* Makes elements anew and gives the keyboard focus back to the one that had it. */
  keepFocus(change) {
    const active = document.activeElement && this.scroll.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    change();
    if (!active || document.activeElement.dataset.focus === active) return;
    const again = [...this.scroll.querySelectorAll("[data-focus]")].find(one => one.dataset.focus === active);
    if (again) again.focus({preventScroll: true});
  }

  heading(column, index) {
    const sorted = this.sort && this.sort.key === column.key ? (this.sort.down ? "descending" : "ascending") : "none";
    const sign = {descending: " ↓", ascending: " ↑", none: ""}[sorted];
    const button = Craft.element("button", {type: "button", title: column.about || column.label, "data-focus": "head " + column.key, onclick: () => {
      const numeric = column.kind !== "text";
      this.sort = sorted === "none" ? {key: column.key, down: numeric && column.better !== "minimize"} : {key: column.key, down: !this.sort.down};
      this.toTop();
      this.render();
    }}, column.label + sign);
    const head = Craft.element("th", {scope: "col", "aria-sort": sorted, class: column.kind === "text" ? "" : "num"}, button);
    // as wide as the longest text of all rows, so that scrolling does not change a column's width
    if (this.shown.length > Craft.SIGHT / this.height) head.style.minWidth = `min(${this.widths[index]}ch + 20px, var(--widest))`;
    return head;
  }

  row(row, place) {
    const table = this.data, make = name => document.createElement(name);
    const id = table.id[row];
    const line = make("tr");
    line.craftId = id;
    line.craftPlace = place;
    line.setAttribute("aria-rowindex", place + 2);
    if (this.selected && !this.only && this.selected.has(id)) line.classList.add("chosen");
    if (this.pinned === id) line.classList.add("pinned");
    table.columns.forEach((column, index) => {
      if (column.more && !this.all) return;
      const text = this.texts[index][row], cell = make("td");
      cell.dataset.heading = column.label;  // narrow screens show a row as a card, each cell with its heading
      if (column.kind !== "text") cell.classList.add("num");
      else if (table.plain) cell.classList.add("wrap");
      if (this.best(index, row)) cell.classList.add("best");
      if (column.key === "label") {
        const name = Craft.element("button", {type: "button", class: "name", title: text, "data-focus": "row " + id}, text);
        cell.append(name);
        const [front, says] = this.front.has(id) ? ["●", "on the front"] : this.possible.has(id) ? ["○", "may be on the front"] : [];
        const marks = [[front, says], this.enough.has(id) ? ["✓", "enough"] : []];
        for (const [mark, says] of marks) if (mark) cell.append(Craft.element("span", {class: "sign", title: says, role: "img", "aria-label": says}, mark));
      } else {
        cell.textContent = text;
        if (text.length > 30) cell.title = text;
      }
      line.append(cell);
    });
    return line;
  }

  async copy(kind) {
    const rows = this.rows();
    const text = Craft.copies[kind](kind === "CSV" ? this.data : {...this.data, columns: this.columns()}, rows);
    const copied = await Craft.copyText(text);
    this.said.textContent = copied ? `${rows.length} rows copied as ${kind}` : "The browser does not allow copying here: take the text below.";
    this.byHand.hidden = copied;
    if (!copied) {
      this.byHand.value = text;
      this.byHand.focus();
      this.byHand.select();
    }
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => { this.said.textContent = ""; }, 4000);
  }
};
